"""The model that a request gets."""

from types import SimpleNamespace
from typing import cast

import pytest

from bert.errors import (
    BertError,
    ConfigError,
    InvalidRequestError,
    ModelLeftOutError,
    NoDefaultModelError,
    UnknownModelError,
)
from service.engine.models import Model, Registry, SkippedBundle, default_names


def model(name: str, task: str) -> Model:
    return cast(Model, SimpleNamespace(name=name, spec=SimpleNamespace(task=task)))


REGISTRY = Registry(
    {"mood": model("mood", "classification"), "names": model("names", "ner")},
    {"classification": "mood", "ner": "broken"},
    [SkippedBundle("broken", "ner", "its graph is damaged")],
    first="names",
)


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("mood", "classification", "mood"),
        (None, "classification", "mood"),
        ("names", None, "names"),
        (None, None, "names"),
    ],
)
def test_a_request_gets_the_named_model_or_the_default(
    name: str | None, task: str | None, expected: str
) -> None:
    assert REGISTRY.find(name, task).name == expected


@pytest.mark.parametrize(
    ("name", "task", "error", "message"),
    [
        ("nope", None, UnknownModelError, "there is no model 'nope'; loaded are mood, names"),
        (None, "qa", NoDefaultModelError, "no model for qa is loaded; loaded are mood, names"),
        (None, "ner", ModelLeftOutError, "model 'broken' is not served"),
        ("broken", None, ModelLeftOutError, "model 'broken' is not served"),
        ("mood", "ner", InvalidRequestError, "model 'mood' is for classification, .* one for ner: names"),
    ],
)
def test_a_request_without_a_model_is_told_why(
    name: str | None, task: str | None, error: type[BertError], message: str
) -> None:
    with pytest.raises(error, match=message):
        REGISTRY.find(name, task)


def test_a_chosen_default_must_be_of_its_task() -> None:
    bundles = [("mood", "classification"), ("names", "ner"), ("unreadable", "")]
    assert default_names(bundles, {"ner": "unreadable"})["ner"] == "unreadable"
    with pytest.raises(ConfigError, match="default_models: 'mood' is not a loaded ner model"):
        default_names(bundles, {"ner": "mood"})
