"""The short texts that a task.json keeps to try its model with."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.tasks.spec import TaskSpec
from service.tasks.table import FIRST
from tests.support.files import Write
from training.finetune import finetune
from training.labelled.model_examples import MAX_CHARACTERS, model_examples
from training.settings import FinetuneSettings

Make = Callable[..., FinetuneSettings]


def text(words: str, label: Any, pair: str | None = None) -> TextExample:
    return TextExample(words, pair, label, words)


def chosen(examples: list[Any], count: int, *, embeds: bool = False) -> list[dict[str, Any]]:
    return list(model_examples(examples, count, embeds=embeds))


def test_each_label_has_its_turn() -> None:
    examples = [text("one", "a"), text("two", "a"), text("two", "a"), text("three", "b")]
    assert chosen(examples, 2) == [{"text": "one"}, {"text": "three"}]
    assert chosen(examples, 9) == [{"text": "one"}, {"text": "three"}, {"text": "two"}]
    assert chosen(examples, 0) == chosen([], 3) == []


def test_long_and_empty_texts_are_passed_over() -> None:
    examples = [text("x" * (MAX_CHARACTERS + 1), "a"), text("", "b"), text("one", "a", "two")]
    assert chosen(examples, 3) == [{"text": "one", "text_pair": "two"}]


def test_each_task_has_its_fields() -> None:
    words = [
        WordsExample(("It", "rains"), ("O", "O"), "1"),
        WordsExample(("In", "Rome"), ("O", "B-LOC"), "2"),
    ]
    assert chosen(words, 1) == [{"text": "In Rome"}]
    questions = [QaExample("1", "Who?", "Ada.", (("Ada", 0),), ""), QaExample("2", "When?", "Ada.", (), "")]
    assert chosen(questions, 2) == [{"question": q, "context": "Ada."} for q in ("Who?", "When?")]
    choice = ChoiceExample("So", ("a.", "b."), 0, "1")
    assert chosen([choice], 1) == [{"prompt": "So", "choices": ["a.", "b."]}]


def test_embeddings_are_compared_with_their_own_text_and_with_others() -> None:
    pairs = [text(f"text {n}", float(n), f"pair {n}") for n in range(5)]
    assert chosen(pairs, 1, embeds=True) == [
        {"text": "text 4", "candidates": ["pair 1", "pair 2", "pair 3", "pair 4"]}
    ]
    assert chosen(pairs[:2], 1, embeds=True) == []


@pytest.mark.parametrize(
    "examples",
    [
        [text("one", "a"), text("one", 2.0, "two"), text("one", ("a",))],
        [WordsExample(("In", "Rome"), ("O", "B-LOC"), "2")],
        [QaExample("1", "Who?", "Ada.", (("Ada", 0),), "")],
        [ChoiceExample("So", ("a.", "b."), 0, "1")],
    ],
)
def test_what_is_kept_is_a_request_to_the_endpoint(examples: list[Any]) -> None:
    task = {
        TextExample: "classification",
        WordsExample: "ner",
        QaExample: "qa",
        ChoiceExample: "multiple_choice",
    }
    request = FIRST[task[type(examples[0])]].request
    for body in chosen(examples, 3):
        request.model_validate(body)


@pytest.mark.parametrize(
    ("setting", "kept"), [({}, [{"text": "a refund"}, {"text": "the parcel"}]), ({"examples": 0}, [])]
)
def test_a_run_keeps_dev_texts_unless_told_not_to(
    settings_for: Make, write: Write, setting: dict[str, Any], kept: list[dict[str, str]]
) -> None:
    rows = [
        {"text": text, "label": label} for text, label in [("a refund", "refund"), ("the parcel", "shipping")]
    ]
    file = write("data.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    data = [{"path": file}]
    best = finetune(settings_for("classification", train=data, dev=data, max_steps=1, **setting))
    assert list(TaskSpec.read(best).examples) == kept
