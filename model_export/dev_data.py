"""Labelled data in its plainest forms, to score a graph on: tsv with a header, CoNLL columns, SQuAD json.

`training` reads many more; export needs only these. What cannot be read is refused with its line, for a score on
data that was misread is worse than none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bert.conll import sentences, to_bio
from bert.errors import DataError
from bert.unicode import is_unicode

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
    line: int


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
    lines = _lines(path)
    names = lines[0].split("\t")
    first, second, label = (_column(names, wanted) for wanted in (_FIRST, _SECOND, _LABEL))
    if {"question", "sentence"} <= set(names):  # QNLI
        first, second = names.index("question"), names.index("sentence")
    if first is None or label is None:
        raise DataError(path, 1, f"needs a column of {', '.join(_FIRST)} and one of {', '.join(_LABEL)}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(names):
            raise DataError(path, number, f"has {len(fields)} columns instead of {len(names)}")
        for column in (first, label) if second is None else (first, second, label):
            if not fields[column].strip():
                raise DataError(path, number, f"{names[column]!r} is empty")
        pair = None if second is None else fields[second]
        rows.append(LabelledText(fields[first], pair, fields[label].strip(), number))
    return _not_empty(path, rows)


def read_sentences(path: Path, labels: tuple[str, ...]) -> list[Sentence]:
    """Read a word a line with its tag in the last column, in any scheme (BIO, BIOES ...), as training reads it.

    Types that the model does not know count as O. Raises DataError for a line that cannot be read, and where the
    model knows none of the types.
    """
    known = {label[2:] if label[:2] in ("B-", "I-") else label for label in labels}
    found = [
        Sentence([word for _, word, _ in lines], to_bio([tag for _, _, tag in lines]))
        for lines in sentences(_lines(path), lambda line, reason: _refuse(path, line, reason))
    ]
    types = {tag[2:] for sentence in found for tag in sentence.tags if tag != "O"}
    if types and not types & known:
        unknown, wanted = ", ".join(sorted(types)), ", ".join(sorted(known - {"O"}))
        raise DataError(path, None, f"has the types {unknown}, and the model knows only {wanted}")
    for sentence in found:
        sentence.tags[:] = [tag if tag[2:] in known else "O" for tag in sentence.tags]
    return _not_empty(path, found)


def read_questions(path: Path) -> list[Question]:
    """Read SQuAD json, 1.1 or 2.0. Raises DataError."""
    try:
        articles = json.loads(_read(path))["data"]
        questions = [
            _question(path, qa, paragraph["context"])
            for article in articles
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise DataError(path, error.lineno, f"is not json: {error.msg}") from None
    except KeyError as error:
        raise DataError(path, None, f"is not SQuAD json: something has no {error}") from None
    except (TypeError, AttributeError, RecursionError):
        raise DataError(
            path, None, "is not SQuAD json: lists and objects are not where they should be"
        ) from None
    return _not_empty(path, questions)


def _question(path: Path, qa: dict[str, Any], context: str) -> Question:
    answers = [] if qa.get("is_impossible") else [answer["text"] for answer in qa["answers"]]
    for text in (qa["question"], context, *answers):
        if not isinstance(text, str):
            raise DataError(path, None, f"is not SQuAD json: {text!r} should be a text")
        if not is_unicode(text):
            raise DataError(
                path, None, f"question {qa.get('id')!r}: half of a surrogate pair is not valid Unicode"
            )
    return Question(qa["question"], context, answers)


def _refuse(path: Path, line: int, reason: str) -> NoReturn:
    raise DataError(path, line, reason)


def _column(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _not_empty(path: Path, rows: list[Row]) -> list[Row]:
    if not rows:
        raise DataError(path, None, "holds no examples")
    return rows


def _lines(path: Path) -> list[str]:
    r"""Return the lines, which end at \n and \r\n only: `splitlines` would also cut inside a text, at U+0085."""
    return [line.removesuffix("\r") for line in _read(path).split("\n")]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "is not UTF-8; save the file as UTF-8") from None
