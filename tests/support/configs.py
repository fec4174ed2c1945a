"""Configurations by flat values."""

from dataclasses import fields
from typing import Any

from bert.config import BertConfig
from bert.families import FAMILIES


def config_of(**values: Any) -> BertConfig:
    """Return a configuration; values of the family's body are given beside the others."""
    body = FAMILIES[values.get("model_type", "bert")].body
    of_body = {field.name: values.pop(field.name) for field in fields(body) if field.name in values}
    return BertConfig(**values, body=body(**of_body))
