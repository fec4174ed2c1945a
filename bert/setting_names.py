"""Suggestions for setting names that do not exist."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's types of error for a name that is not known, of a model's and of a dataclass's field."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the known name that is most like this one, or nothing."""
    plain = {other.replace("-", "_").lower(): other for other in known}
    found = difflib.get_close_matches(name.replace("-", "_").lower(), plain, n=1)
    return f"; did you mean {plain[found[0]]}?" if found else ""


def no_such_setting(settings: type, place: Sequence[int | str]) -> str:
    """Return what is wrong with a name that pydantic found at a place of the settings and does not know."""
    *way, name = place
    return f"there is no such setting{did_you_mean(str(name), _names_at(settings, way))}"


def with_suggestions(message: str, options: Iterable[str]) -> str:
    """Add to argparse's "unrecognized arguments: --epoch 3" what each of them may have stood for."""
    unknown = re.findall(r"(?<!\S)--[^\s=]+", message) if message.startswith("unrecognized arguments") else []
    known = list(options)
    return message + "".join(did_you_mean(option, known) for option in unknown)


def _names_at(kind: Any, way: Sequence[int | str]) -> Iterable[str]:
    """Return the names of the fields that lie at a place inside of settings."""
    types = _types_of_fields(kind)
    for number, part in enumerate(way):
        if part in types:
            return _names_at(types[str(part)], way[number + 1 :])
    return types


def _types_of_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of the model or dataclass inside of a type such as `list[DataFile]` or `LoraSettings | None`."""
    if hasattr(kind, "model_fields"):  # pydantic's; this package does without it
        return {name: info.annotation for name, info in kind.model_fields.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return {field.name: field.type for field in fields(kind)}
    return next((found for part in get_args(kind) if (found := _types_of_fields(part))), {})
