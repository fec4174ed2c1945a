"""The real texts that every export is verified on, and that the 8-bit export is fitted to.

`texts.json` holds a few of many kinds, `sentences.txt` 1,280 sentences from some 500 books in the public domain.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Pieces
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Reads
from bert.tokenizer import Tokenizer

CALIBRATING = 10
"""One in ten of the sentences is for calibration."""
PARAGRAPH = 4
"""Sentences that make a paragraph to ask about."""
MASKS = 2
"""Pieces that are hidden in a text for a model that fills masks: each has a score for every piece of the vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One encoded text and the positions at which the head is evaluated."""

    encoding: Encoding
    positions: NDArray[np.intp]
    """(P,) among the text's own tokens."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.encoding)


def make_text(encoding: Encoding, task: str) -> Text:
    """Choose the positions as the service does."""
    return Text(encoding, TASKS[task].head_positions(encoding))


def shipped_texts(tokenizer: Tokenizer, spec: TaskSpec) -> list[Text]:
    """Return sentences, questions and paragraphs of 3 to some 200 tokens, encoded as the task's model reads them."""
    return [make_text(encoding, spec.task) for encoding in _encodings(tokenizer, spec)]


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences as a task's model reads them: singly, in pairs, or as short paragraphs with questions."""

    for_calibration: list[Text]
    unseen: list[Text]
    """Those that no scale was fitted to."""


def sentences(tokenizer: Tokenizer, spec: TaskSpec) -> Sentences:
    """Return the sentences, encoded as the task's model reads them."""
    texts = [make_text(encoding, spec.task) for encoding in _of_sentences(tokenizer, spec)]
    first = len(texts) // CALIBRATING
    return Sentences(texts[:first], texts[first:])


def texts_file() -> dict[str, Any]:
    """Return the content of `texts.json`: texts, and questions with their paragraphs."""
    content: dict[str, Any] = json.loads(_shipped("texts.json"))
    return content


def _shipped(file: str) -> str:
    return resources.files("model_export.verify").joinpath(file).read_text("utf-8")


def _of_sentences(tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    task, lines = TASKS[spec.task], _shipped("sentences.txt").splitlines()
    texts: list[Sequence[Pieces]]
    if task.reads(spec) is Reads.QUESTION:
        questions = tokenizer.pieces([row["question"] for row in texts_file()["questions"]])
        starts = range(0, len(lines), PARAGRAPH)
        paragraphs = tokenizer.pieces([" ".join(lines[start : start + PARAGRAPH]) for start in starts])
        texts = [(questions[n % len(questions)], pieces) for n, pieces in enumerate(paragraphs)]
    else:
        singles = tokenizer.pieces(lines)
        is_pair = task.reads(spec) is Reads.PAIR
        texts = _in_pairs(singles) if is_pair else [(pieces,) for pieces in singles]
    return [task.sample(tokenizer, text, spec, MASKS)[0] for text in texts]


def _encodings(tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    task, content = TASKS[spec.task], texts_file()
    questions = tokenizer.pieces([row["question"] for row in content["questions"]])
    contexts = tokenizer.pieces([row["context"] for row in content["questions"]])
    singles = tokenizer.pieces(content["texts"])
    texts: list[Sequence[Pieces]] = list(zip(questions, contexts, strict=True))
    if task.reads(spec) is Reads.QUESTION:
        # Any text can be asked about; so that short ones are among them, each question goes to the next texts too.
        texts += [(questions[n % len(questions)], pieces) for n, pieces in enumerate(singles)]
    elif task.reads(spec) is Reads.PAIR:
        texts += _in_pairs(singles)
    else:
        texts = [(pieces,) for pieces in [*singles, *contexts]]
    return [encoding for text in texts for encoding in task.sample(tokenizer, text, spec, MASKS)]


def _in_pairs(pieces: Sequence[Pieces]) -> list[Sequence[Pieces]]:
    return list(zip(pieces[::2], pieces[1::2], strict=True))
