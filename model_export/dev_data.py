"""Labelled data in its plainest forms, to score a graph on: tsv with a header, CoNLL columns, SQuAD json.

`training` reads many more; export shares files with it, not code, and needs only these.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bert.errors import DataError

Row = TypeVar("Row")

# Names of the columns in GLUE's files; the first that are there are read.
_FIRST = ("sentence", "sentence1", "text", "question", "question1", "#1 String")
_SECOND = ("sentence2", "text_pair", "question2", "#2 String")
_LABEL = ("label", "gold_label", "score", "Quality", "is_duplicate")


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or two, and what the file has for a label."""

    first: str
    second: str | None
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and a BIO tag for each."""

    words: list[str]
    tags: list[str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its paragraph, and the texts of right answers; none: it has no answer."""

    question: str
    context: str
    answers: list[str]


def read_texts(path: Path) -> list[LabelledText]:
    """Read tab-separated columns with a header, as in GLUE. Quotes are letters. Raises DataError."""
    lines = _read(path).split("\n")
    names = lines[0].rstrip("\r").split("\t")
    first, second, label = (_column(names, wanted) for wanted in (_FIRST, _SECOND, _LABEL))
    if {"question", "sentence"} <= set(names):  # QNLI
        first, second = names.index("question"), names.index("sentence")
    if first is None or label is None:
        raise DataError(path, 1, f"needs a column of {', '.join(_FIRST)} and one of {', '.join(_LABEL)}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        fields = line.rstrip("\r").split("\t")
        if fields == [""]:
            continue
        if len(fields) != len(names):
            raise DataError(path, number, f"has {len(fields)} columns instead of {len(names)}")
        rows.append(LabelledText(fields[first], None if second is None else fields[second], fields[label]))
    return _not_empty(path, rows)


def read_sentences(path: Path, labels: tuple[str, ...]) -> list[Sentence]:
    """Read a word a line with its tag in the last column; types that the model does not know count as O."""
    sentences = []
    for block in _blocks(path):
        rows = [line.split() for line in block if not line.startswith("-DOCSTART-")]
        tags = [row[-1] if row[-1] in labels else "O" for row in rows]
        if rows:
            sentences.append(Sentence([row[0] for row in rows], tags))
    return _not_empty(path, sentences)


def read_questions(path: Path) -> list[Question]:
    """Read SQuAD json, 1.1 or 2.0. Raises DataError."""
    try:
        articles = json.loads(_read(path))["data"]
        return _not_empty(
            path,
            [
                Question(qa["question"], paragraph["context"], [a["text"] for a in qa["answers"]])
                for article in articles
                for paragraph in article["paragraphs"]
                for qa in paragraph["qas"]
            ],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(path, None, f"is not SQuAD json: {error!r}") from None


def _blocks(path: Path) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*_read(path).splitlines(), ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _column(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _not_empty(path: Path, rows: list[Row]) -> list[Row]:
    if not rows:
        raise DataError(path, None, "holds no examples")
    return rows


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, None, f"cannot be read: {error}") from None
