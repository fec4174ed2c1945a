"""One row of a table, however it was stored, to one TextExample: which columns, and what they mean."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bert.data.examples import TextExample
from bert.data.files import NOT_UNICODE, Place, Problems, holds_unicode
from bert.tasks.spec import PROBLEM_TYPES

logger = logging.getLogger(__name__)
Label = str | float | tuple[str, ...] | None
SKIP_EMPTY = "`skip_empty: true` for the file leaves out rows with an empty text or label"
ENTAILMENT = ("entailment", "neutral", "contradiction")
"""Labels of natural language inference (NLI)."""
LABEL_SEPARATOR = ","
"""Stands between the labels of one multi-label cell."""


@dataclass(frozen=True)
class TextColumns:
    """Which columns of a table are read, and how its labels are.

    In a table without a header the columns are named "1", "2", "3", ...
    """

    text: str = "text"
    text_pair: str | None = None
    """The second text of a pair."""
    label: str | None = "label"
    """The label's column. None: the texts have no labels."""
    id: str | None = None
    """A column of unique ids; without one the line (of a json list "row 3") is the id."""
    problem_type: str = "single_label"
    """single_label, multi_label or regression, as in task.json."""
    label_names: Mapping[str, str] = field(default_factory=dict)
    """Better names for labels: {"0": "negative", "1": "positive"}."""
    skip_labels: tuple[str, ...] = ()
    """Rows with one of these are left out: SNLI's "-", on which the annotators did not agree."""
    labels: tuple[str, ...] | None = None
    """When given, any other label (after renaming) is a problem: read dev with the labels of train."""
    skip_empty: bool = False
    """Rows with an empty text or label are left out and counted, instead of being a problem."""
    negatives: tuple[str, ...] | None = None
    """Columns of texts that do not belong to `text`, a text or a list each; None: labels say what belongs together."""
    entailment: bool = False
    """A label may be one of NLI instead of a number."""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown problem type."""
        if self.problem_type not in PROBLEM_TYPES:
            raise ValueError(f"problem_type is {self.problem_type!r}; known are {', '.join(PROBLEM_TYPES)}")

    @property
    def are_of_nli(self) -> bool:
        """True where the columns have the names of NLI's: then 0, 1 and 2 are not scores."""
        return self.entailment and (self.text, self.text_pair) == ("premise", "hypothesis")

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        named = (self.text, self.text_pair, self.label, self.id, *(self.negatives or ()))
        return tuple(name for name in named if name is not None)


def text_examples(
    path: str | Path,
    rows: Iterable[tuple[Place, Mapping[str, object]]],
    columns: TextColumns,
    problems: Problems,
) -> list[TextExample]:
    """Turn (place, row) pairs into examples.

    Raises DataError with everything in `problems`, or when no rows are left.
    """
    examples, seen, skipped, empty = [], set[str](), 0, 0
    for place, row in rows:
        if _is_skipped(row, columns):
            skipped += 1
            continue
        if _has_empty(row, columns):
            empty += 1
            if columns.skip_empty:
                continue
        example = _example(row, columns, place, problems)
        if example.id in seen:
            problems.add(place, f"id {example.id!r} occurs twice")
        seen.add(example.id)
        examples.append(example)
    if not examples and not len(problems):
        problems.add(
            None, f"has no rows without an empty cell ({empty} were left out)" if empty else "has no rows"
        )
    elif empty and not columns.skip_empty:
        problems.advice = SKIP_EMPTY
    if examples and columns.are_of_nli and {example.label for example in examples} <= {0.0, 1.0, 2.0}:
        problems.add(
            None,
            f"has numbers for labels of NLI: say which, label_names: [{', '.join(ENTAILMENT)}] for this file",
        )
    problems.raise_if_any()
    if empty:
        logger.warning("%s: %d rows with an empty text or label were left out (skip_empty)", path, empty)
    if skipped:
        logger.info("%s: %d rows labelled %s were left out", path, skipped, " or ".join(columns.skip_labels))
    return examples


def _is_skipped(row: Mapping[str, object], columns: TextColumns) -> bool:
    return columns.label is not None and _text_of(row.get(columns.label)) in columns.skip_labels


def _has_empty(row: Mapping[str, object], columns: TextColumns) -> bool:
    # No label is an answer too where there may be several.
    label = None if columns.problem_type == "multi_label" else columns.label
    needed = (columns.text, columns.text_pair, label, *(columns.negatives or ()))
    return any(name is not None and not _text_of(row.get(name)) for name in needed)


def _example(
    row: Mapping[str, object], columns: TextColumns, place: Place, problems: Problems
) -> TextExample:
    for column in columns.named:
        if not holds_unicode(row.get(column)):
            problems.add(place, f"{column!r} {NOT_UNICODE}")
    text = _checked_text(row.get(columns.text), columns.text, place, problems)
    second = columns.text_pair
    pair = None if second is None else _checked_text(row.get(second), second, place, problems)
    try:
        label = _label(row, columns)
    except ValueError as error:
        problems.add(place, str(error))
        label = None
    given = None if columns.id is None else _text_of(row.get(columns.id))
    negatives = None if columns.negatives is None else _negatives(row, columns.negatives, place, problems)
    return TextExample(text, pair, label, given or str(place), negatives)


def _negatives(
    row: Mapping[str, object], columns: tuple[str, ...], place: Place, problems: Problems
) -> tuple[str, ...]:
    """Return the texts of all columns; a list holds several, or none."""
    found: list[str] = []
    for column in columns:
        value = row.get(column)
        several = value if isinstance(value, list) else [value]
        found += [_checked_text(text, column, place, problems) for text in several]
    return tuple(found)


def _checked_text(value: object, column: str, place: Place, problems: Problems) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        problems.add(place, f"{column!r} is empty")
    elif not isinstance(value, str):
        problems.add(place, f"{column!r} is {value!r}, which is not text")
    else:
        return value
    return ""


def _label(row: Mapping[str, object], columns: TextColumns) -> Label:
    """Read the label; raises ValueError with the reason."""
    if columns.label is None:
        return None
    value = row.get(columns.label)
    name = columns.label_names.get(_text_of(value), _text_of(value))
    if columns.entailment and name in ENTAILMENT:
        return name
    if columns.problem_type == "regression":
        return _number(value, columns.label)
    if columns.problem_type == "multi_label":
        parts = value if isinstance(value, list) else _text_of(value).split(LABEL_SEPARATOR)
        return tuple(_named(name, columns) for part in parts if (name := _text_of(part)))
    label = _text_of(value)
    if not label:
        raise ValueError(f"{columns.label!r} is empty")
    return _named(label, columns)


def _named(label: str, columns: TextColumns) -> str:
    name = columns.label_names.get(label, label)
    if columns.labels is not None and name not in columns.labels:
        raise ValueError(f"unknown label {name!r}; known are {', '.join(columns.labels)}")
    return name


def _number(value: object, column: str) -> float:
    try:
        number = float(_text_of(value))
    except ValueError:
        raise ValueError(f"{column!r} is {value!r}, which is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{column!r} is {value!r}, which is not finite")
    return number


def _text_of(value: object) -> str:
    """Return a JSON value as a csv file would hold it; a label may be a name or a number."""
    return "" if value is None else str(value).strip()
