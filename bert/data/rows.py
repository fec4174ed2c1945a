"""One row of a table, however it was stored, to one TextExample: which columns, and what they mean.

For similarity a row is a pair of texts: with a score, or a positive one, perhaps with hard negatives.
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert.data.examples import TextExample
from bert.data.files import NOT_UNICODE, Place, Problems, holds_unicode
from bert.errors import ConfigError, DataError
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
        if columns.label is not None and _text_of(row.get(columns.label)) in columns.skip_labels:
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


_FIRST = ("text", "anchor", "query", "question", "sentence1", "premise")
"""Names that the column of first texts may have, the preferred one first."""
_POSITIVE = ("positive", "answer")
"""Names of second texts that say that they belong to the first."""
_SECOND = ("text_pair", *_POSITIVE, "sentence2", "hypothesis")
_LABEL = ("label", "score", "gold_label")
_NEGATIVE = re.compile(r"negatives?|negative_\d+")


def pair_columns(path: Path, named: Mapping[str, str], present: Collection[str]) -> dict[str, Any]:
    """Return the fields of TextColumns for pairs, from what `columns` names and what is `present`.

    The second text is a positive where its column or a column of negatives says so, or where `columns` names an empty
    label. Raises ConfigError for columns that name scores and negatives.
    """
    negatives = _negative_columns(named, present)
    second = named.get("text_pair") or _found(_SECOND, present)
    is_positive = named.get("label") == "" or bool(negatives) or second in _POSITIVE
    if negatives and named.get("label"):
        raise ConfigError(
            f'columns of {path} names a label and negatives: pairs have scores, or negatives ({{"negative": ""}})'
        )
    label = named.get("label", _found(_LABEL, present))
    if negatives and label and "negative" not in named and second not in _POSITIVE:
        raise ConfigError(
            f"{path} has scores ({label!r}) and negatives ({', '.join(map(repr, negatives))}): say which are read, "
            '"columns": {"negative": ""} or {"label": ""}'
        )
    if negatives:
        label = ""
    if label is None:
        label = "" if is_positive else "label"
    fields: dict[str, Any] = {
        "text": named.get("text") or _found(_FIRST, present) or ("anchor" if is_positive else "text"),
        "text_pair": second or ("positive" if is_positive else "text_pair"),
        "label": label or None,
        "negatives": None if label else negatives,
    }
    return {**fields, "id": named["id"]} if "id" in named else fields


def _found(names: Sequence[str], present: Collection[str]) -> str | None:
    return next((name for name in names if name in present), None)


def _negative_columns(named: Mapping[str, str], present: Collection[str]) -> tuple[str, ...]:
    """Return the columns of negatives, those with numbers in the order of their numbers."""
    if "negative" in named:
        return tuple(name.strip() for name in named["negative"].split(",") if name.strip())
    return tuple(sorted(filter(_NEGATIVE.fullmatch, present), key=lambda name: (len(name), name)))


def from_entailment(path: Path, examples: Sequence[TextExample]) -> list[TextExample]:
    """Turn NLI rows into positive pairs: a premise and what it entails, with a contradiction of it as hard negative.

    Pairs with scores, and positive ones, stay as they are. Raises DataError for a file that has numbers and NLI labels,
    other labels, pairs without a label, or no entailment.
    """
    unlabelled = sum(example.label is None and example.negatives is None for example in examples)
    if unlabelled:
        raise DataError(path, None, f"has {unlabelled} pairs without a score, of {len(examples)}")
    labels = {example.label for example in examples if isinstance(example.label, str)}
    if not labels:
        return list(examples)
    if unknown := labels - set(ENTAILMENT):
        known = f"numbers, or {', '.join(ENTAILMENT)}"
        raise DataError(path, None, f"has the label {min(unknown)!r}; similarity is learned from {known}")
    if odd := next((example for example in examples if not isinstance(example.label, str)), None):
        raise DataError(path, None, f"has labels of NLI and the label {odd.label!r}")
    contradictions = defaultdict[str, list[str]](list)
    for example in examples:
        if example.label == "contradiction" and example.text_pair:
            contradictions[example.text].append(example.text_pair)
    pairs, taken = [], defaultdict[str, int](int)
    for example in examples:
        if example.label == "entailment":
            found, number = contradictions[example.text], taken[example.text]
            taken[example.text] += 1
            negative = (found[number % len(found)],) if found else ()
            pairs.append(replace(example, label=None, negatives=negative))
    if not pairs:
        raise DataError(path, None, "has no row with the label 'entailment'")
    logger.info(
        "%s: %d NLI rows give %d pairs, %d of them with a contradiction as hard negative",
        path, len(examples), len(pairs), sum(bool(pair.negatives) for pair in pairs),
    )  # fmt: skip
    return pairs
