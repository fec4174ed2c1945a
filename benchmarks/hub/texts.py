"""Real texts to compare models on, in the form in which a task's endpoint takes them. They come with `bert-export`."""

from collections.abc import Iterator
from importlib import resources
from itertools import cycle, pairwise
from typing import Any

from bert.tasks.fill_mask import MASK
from bert.tasks.spec import TaskSpec
from model_export.verify.texts import texts_file

CHOICES = 4
PARAGRAPH = 3
"""Sentences of a paragraph that is asked about."""

Item = dict[str, Any]
"""The fields of one text, pair, question or prompt in a request."""


def items(spec: TaskSpec, languages: bool = True) -> Iterator[Item]:
    """Yield what a model of the task can be asked: short texts of several languages, then sentences from books."""
    content = texts_file()
    lines = resources.files("model_export.verify").joinpath("sentences.txt").read_text("utf-8").splitlines()
    texts = [*(content["texts"] if languages else ()), *lines]
    match spec.task:
        case "qa":
            asked = [row["question"] for row in content["questions"]]
            yield from (
                {"question": row["question"], "context": row["context"]} for row in content["questions"]
            )
            starts = range(0, len(lines) - PARAGRAPH, PARAGRAPH)
            for question, at in zip(cycle(asked), starts, strict=False):
                yield {"question": question, "context": " ".join(lines[at : at + PARAGRAPH])}
        case "multiple_choice":
            for at in range(len(texts) - CHOICES):
                yield {"prompt": texts[at], "choices": texts[at + 1 : at + 1 + CHOICES]}
        case "fill_mask":
            yield from ({"text": _masked(text)} for text in texts if len(text.split()) > 2)
        case _ if spec.pair:
            yield from ({"text": one, "text_pair": other} for one, other in pairwise(texts))
        case _:
            yield from ({"text": text} for text in texts)


def _masked(text: str) -> str:
    """Return a text with a mask in place of its middle word."""
    words = text.split()
    words[len(words) // 2] = MASK
    return " ".join(words)
