"""The real texts that every export is verified on, and that the 8-bit export is fitted to.

`texts.json` holds a few of many kinds, `sentences.txt` 1,280 sentences from some 500 books in the public domain.
"""

import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Pieces
from bert.tasks import fill_mask, qa
from bert.tasks.heads import HEADS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

CALIBRATING = 10
"""One in ten of the sentences is for calibration."""
PARAGRAPH = 4
"""Sentences that make a paragraph to ask about."""


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
    return Text(encoding, HEADS[task](encoding))


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


def _of_sentences(tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    folder = resources.files("model_export.verify")
    lines = folder.joinpath("sentences.txt").read_text("utf-8").splitlines()
    limit = spec.max_tokens
    if spec.task == "qa":
        rows = json.loads(folder.joinpath("texts.json").read_text("utf-8"))["questions"]
        questions = tokenizer.pieces([row["question"] for row in rows])
        starts = range(0, len(lines), PARAGRAPH)
        paragraphs = tokenizer.pieces([" ".join(lines[start : start + PARAGRAPH]) for start in starts])
        pairs = [(questions[n % len(questions)], pieces) for n, pieces in enumerate(paragraphs)]
        return [qa.encode(tokenizer, question, context, spec)[0].encoding for question, context in pairs]
    singles = tokenizer.pieces(lines)
    if spec.pair or spec.task == "multiple_choice":
        pairs = list(zip(singles[::2], singles[1::2], strict=True))
        return [tokenizer.pair(a, b, limit, truncate=True) for a, b in pairs]
    if spec.task == "fill_mask":
        singles = [_masked(pieces.slice(0, limit - 2), tokenizer.mask_id) for pieces in singles]
    return [tokenizer.single(pieces, limit, truncate=True) for pieces in singles]


def _encodings(tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    content = json.loads(resources.files("model_export.verify").joinpath("texts.json").read_text("utf-8"))
    texts, rows = content["texts"], content["questions"]
    questions = tokenizer.pieces([row["question"] for row in rows])
    contexts = tokenizer.pieces([row["context"] for row in rows])
    pairs = list(zip(questions, contexts, strict=True))
    if spec.task == "qa":
        # Any text can be asked about; so that short ones are among them, each question goes to the next texts too.
        pairs += [(questions[n % len(questions)], pieces) for n, pieces in enumerate(tokenizer.pieces(texts))]
        return [w.encoding for q, c in pairs for w in qa.encode(tokenizer, q, c, spec)]
    singles = tokenizer.pieces(texts)
    limit = spec.max_tokens
    if spec.pair or spec.task == "multiple_choice":
        pairs += zip(singles[::2], singles[1::2], strict=True)
        return [tokenizer.pair(a, b, limit, truncate=True) for a, b in pairs]
    everything = [*singles, *contexts]
    if spec.task == "fill_mask":
        everything = [_masked(pieces.slice(0, limit - 2), tokenizer.mask_id) for pieces in everything]
    return [tokenizer.single(pieces, limit, truncate=True) for pieces in everything]


def _masked(pieces: Pieces, mask_id: int) -> Pieces:
    """Hide two pieces of a text, or its only one: each mask has a score for every piece of the vocabulary."""
    return fill_mask.hide(pieces, [len(pieces) // 3, 2 * len(pieces) // 3], mask_id)
