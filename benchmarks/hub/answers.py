"""One form for the answers of this service and of transformers, and how far they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import results_of
from benchmarks.hub.texts import Item

CLOSE = 1e-3
EDGE = 1e-4
"""Margin of a decision below which float32 sums in another order may turn it."""
BATCH = 32
"""Texts of a request."""
TOP_K = 5
PATHS = {
    "classification": "/classify",
    "ner": "/ner",
    "qa": "/qa",
    "similarity": "/embed",
    "multiple_choice": "/multiple-choice",
    "fill_mask": "/fill-mask",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One text's answer."""

    exact: Any
    """The label, entities with their offsets, the span, the choice, or the pieces: they are the same or not."""
    numbers: tuple[float, ...]
    """Scores in an order that does not depend on them, or a vector."""
    margin: float = float("inf")
    """How far the next best answer is behind; known of transformers' answers only."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the answers of two are from one another."""

    texts: int
    different: int
    """Texts with another label, entity, span, choice or piece."""
    largest_difference: float
    """Largest difference of a score, or of a vector's number, where the answers are the same."""
    example: str = ""
    """First text whose answers differ, with both."""

    def is_close(self, different: float = 0.0, difference: float = CLOSE) -> bool:
        """Tell whether at most that share of the answers is different, and scores differ by no more."""
        return self.different <= different * self.texts and self.largest_difference <= difference


def ask(url: str, task: str, items: Sequence[Item]) -> list[Answer]:
    """Return the service's answers."""
    more = {"top_k": TOP_K} if task == "fill_mask" else {}
    found: list[dict[str, Any]] = []
    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        body = {name: [item[name] for item in batch] for name in batch[0]} | more
        found += results_of(url + PATHS[task], body)
    return [_answer(task, result) for result in found]


def _answer(task: str, result: dict[str, Any]) -> Answer:
    match task:
        case "classification":
            by_label = {each["label"]: each["score"] for each in result["scores"]}
            return Answer(result["label"], tuple(by_label[label] for label in sorted(by_label)))
        case "ner":
            entities = result["entities"]
            places = [(each["start"], each["end"], each["label"]) for each in entities]
            return Answer(places, tuple(each["score"] for each in entities))
        case "qa":
            return Answer((result["start"], result["end"]), (result["score"], result["no_answer_score"]))
        case "multiple_choice":
            by_index = {each["index"]: each["score"] for each in result["scores"]}
            return Answer(result["index"], tuple(by_index[index] for index in sorted(by_index)))
        case "fill_mask":
            (mask,) = result["masks"]
            pieces = [each["id"] for each in mask["candidates"]]
            return Answer(pieces, tuple(each["score"] for each in mask["candidates"]))
    return Answer(None, tuple(result["embedding"]))


def compare(items: Sequence[Item], ours: Sequence[Answer], theirs: Sequence[Answer]) -> Comparison:
    """Compare answers text by text. A decision on the edge counts as the same, and its numbers are compared no more."""
    different, largest, example = 0, 0.0, ""
    for item, one, other in zip(items, ours, theirs, strict=True):
        if one.exact != other.exact:
            if other.margin >= EDGE:
                different += 1
                example = example or f"{item}: {one.exact}, transformers {other.exact}"
            continue
        if one.numbers:
            gap = np.abs(np.array(one.numbers) - _scaled(one.numbers, other.numbers)).max()
            largest = max(largest, float(gap)) if np.isfinite(gap) else float("inf")
    return Comparison(len(items), different, largest, example)


def _scaled(ours: Sequence[float], theirs: Sequence[float]) -> Any:
    """Return their numbers; a vector is brought to length 1 where ours has it."""
    a, b = np.array(ours), np.array(theirs)
    is_vector = (
        len(a) > 1 and abs(float(np.linalg.norm(a)) - 1) < CLOSE and float(np.linalg.norm(b)) > 1 + CLOSE
    )
    return b / np.linalg.norm(b) if is_vector else b
