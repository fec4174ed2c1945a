"""The cases of each demo model, read from cases/*.jsonl, and what counts as right."""

import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.metrics.squad import normalize_answer

CASES = Path(__file__).parent / "cases"
PATHS = {"sentiment": "/classify", "ner": "/ner", "qa": "/qa", "similarity": "/similarity"}
"""Demo model → endpoint."""
NOTHING = "nothing"
"""Shown for no entities and for no answer."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A request to a demo model and the results that are right."""

    name: str
    request: Row
    """Fields of the JSON, without the model."""
    right: frozenset[Hashable]
    """Judged forms of right results, as `judged` gives them."""
    shown: str
    """The request in a line, for a table."""
    wanted: str
    """The right answer in a line."""


def read_cases(model: str) -> list[Case]:
    """Return the cases of a demo model, in the order of its file."""
    lines = (CASES / f"{model}.jsonl").read_text(encoding="utf-8").splitlines()
    return [case for line in lines for case in _READERS[model](json.loads(line))]


def judged(model: str, result: Row) -> Hashable:
    """Return the part of a result that decides whether it is right."""
    match model:
        case "sentiment":
            return str(result["label"])
        case "ner":
            return frozenset((found["start"], found["end"], found["label"]) for found in result["entities"])
        case "qa":
            return None if result["answer"] is None else normalize_answer(result["answer"])
        case _:
            return int(result["index"])


def said(model: str, case: Case, result: Row) -> str:
    """Return a result in a line."""
    match model:
        case "sentiment":
            return f"{result['label']} ({result['score']:.2f})"
        case "ner":
            return _entities([(found["text"], found["label"]) for found in result["entities"]])
        case "qa":
            return f"{result['answer'] or NOTHING} ({result['score']:.2f})"
        case _:
            return f"{case.request['candidates'][result['index']]} ({result['score']:.2f})"


def _sentiment(row: Row) -> Iterator[Case]:
    yield Case(row["name"], {"text": row["text"]}, frozenset({row["label"]}), row["text"], row["label"])


def _ner(row: Row) -> Iterator[Case]:
    text, spans, end = row["text"], set[Hashable](), 0
    for name, label in row["entities"]:  # in the order of the text
        start = text.index(name, end)
        end = start + len(name)
        spans.add((start, end, label))
    yield Case(row["name"], {"text": text}, frozenset({frozenset(spans)}), text, _entities(row["entities"]))


def _entities(entities: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {label}" for name, label in entities) or NOTHING


def _qa(row: Row) -> Iterator[Case]:
    for asked in row["questions"]:
        answers: list[str] = asked["answers"]
        yield Case(
            asked["name"],
            {"question": asked["question"], "context": row["paragraph"]},
            frozenset(map(normalize_answer, answers)) if answers else frozenset({None}),
            asked["question"],
            answers[0] if answers else NOTHING,
        )


def _similarity(row: Row) -> Iterator[Case]:
    # The right one comes second: of equal scores the first is ranked higher.
    request = {"text": row["text"], "candidates": [row["farther"], row["nearer"]]}
    yield Case(row["name"], request, frozenset({1}), row["text"], row["nearer"])


_READERS: dict[str, Callable[[Row], Iterator[Case]]] = {
    "sentiment": _sentiment,
    "ner": _ner,
    "qa": _qa,
    "similarity": _similarity,
}
