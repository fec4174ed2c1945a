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
from bert.tasks.multiple_choice import MultipleChoice
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Reads
from bert.tokenizer import Tokenizer

CALIBRATING = 10
"""One in ten of the sentences is for calibration."""
PARAGRAPH = 4
"""Sentences that make a paragraph to ask about."""
CHOICES = MultipleChoice.judged_together
"""Texts that are choices for the one before them."""
LONG_TOKENS = 640
"""Length of a text for models that read so much: in rows of over 512 tokens a graph may take other operators."""
FEW = 8
"""Texts of all lengths among the shipped ones."""
MASKS = 2
"""Pieces that are hidden in a text for a model that fills masks: each has a score for every piece of the vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """One encoded text and the positions at which the head is evaluated."""

    encoding: Encoding
    positions: NDArray[np.intp]
    """(P,) among the text's own tokens."""
    rows: int | None = None
    """Number of its rows in the graph's output; None where each position has one."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.encoding)


def make_text(encoding: Encoding, task: str) -> EncodedText:
    """Choose the positions as the service does."""
    return EncodedText(encoding, TASKS[task].head_positions(encoding), TASKS[task].output_rows(encoding))


def shipped_texts(tokenizer: Tokenizer, spec: TaskSpec) -> list[EncodedText]:
    """Return sentences, questions and paragraphs, encoded as the task's model reads them.

    They have 3 to some 200 tokens; of a model that reads so much, one has LONG_TOKENS.
    """
    task, content = TASKS[spec.task], texts_file()
    questions = _questions(tokenizer)
    contexts = tokenizer.pieces([row["context"] for row in content["questions"]])
    singles = tokenizer.pieces(content["texts"])
    if task.reads(spec) is Reads.TEXT:
        texts = _inputs([*singles, *contexts], questions, Reads.TEXT)
    elif task.reads(spec) is Reads.CHOICES:
        prompts = [question for question in questions[::CHOICES] for _ in range(CHOICES)]
        texts = [*zip(prompts, contexts, strict=True), *_inputs(singles, questions, Reads.CHOICES)]
    else:
        texts = [*zip(questions, contexts, strict=True), *_inputs(singles, questions, task.reads(spec))]
    if spec.max_tokens >= LONG_TOKENS:
        texts += _long(tokenizer, task.reads(spec), singles[0], questions[0])
    encodings = [encoding for text in texts for encoding in task.sample(tokenizer, text, spec, MASKS)]
    return [make_text(encoding, spec.task) for encoding in encodings]


def few_of(texts: Sequence[EncodedText], task: str) -> list[EncodedText]:
    """Return about FEW of the texts: the shortest, the longest, and those between at equal distances; groups stay whole."""
    size = TASKS[task].judged_together
    groups = sorted(zip(*[iter(texts)] * size, strict=True), key=lambda group: sum(map(len, group)))
    places = np.linspace(0, len(groups) - 1, max(2, FEW // size)).round().astype(int)
    return [text for place in places for text in groups[place]]


def sentences(tokenizer: Tokenizer, spec: TaskSpec) -> list[EncodedText]:
    """Return the sentences as the task's model reads them: singly, in pairs, or as short paragraphs with questions."""
    task, lines = TASKS[spec.task], _shipped("sentences.txt").splitlines()
    if task.reads(spec) is Reads.QUESTION:
        starts = range(0, len(lines), PARAGRAPH)
        lines = [" ".join(lines[start : start + PARAGRAPH]) for start in starts]
    texts = _inputs(tokenizer.pieces(lines), _questions(tokenizer), task.reads(spec))
    return [make_text(task.sample(tokenizer, text, spec, MASKS)[0], spec.task) for text in texts]


def plain_texts(count: int) -> list[str]:
    """Return shipped texts of many kinds, then sentences, at most `count`."""
    found: list[str] = texts_file()["texts"]
    return [*found, *_shipped("sentences.txt").splitlines()][:count]


def texts_file() -> dict[str, Any]:
    """Return the content of `texts.json`: texts, and questions with their paragraphs."""
    content: dict[str, Any] = json.loads(_shipped("texts.json"))
    return content


def _shipped(file: str) -> str:
    return resources.files("model_export.verify").joinpath(file).read_text("utf-8")


def _questions(tokenizer: Tokenizer) -> list[Pieces]:
    return tokenizer.pieces([row["question"] for row in texts_file()["questions"]])


def _long(tokenizer: Tokenizer, reads: Reads, text: Pieces, question: Pieces) -> list[Sequence[Pieces]]:
    """Return one input of LONG_TOKENS or little less: the paragraphs, joined."""
    before = {Reads.QUESTION: [question], Reads.PAIR: [text], Reads.CHOICES: [text]}.get(reads, [])
    joined = " ".join(row["context"] for row in texts_file()["questions"])
    specials = 4
    (pieces,) = tokenizer.pieces([joined])
    long = pieces.slice(0, LONG_TOKENS - specials - sum(map(len, before)))
    return [(*before, long)] * (CHOICES if reads is Reads.CHOICES else 1)


def _inputs(texts: Sequence[Pieces], questions: Sequence[Pieces], reads: Reads) -> list[Sequence[Pieces]]:
    """Return each text with a question, two texts side by side, or each text alone."""
    if reads is Reads.QUESTION:  # any text can be asked about, so that short ones are among them
        return [(questions[n % len(questions)], pieces) for n, pieces in enumerate(texts)]
    if reads is Reads.CHOICES:
        starts = range(0, len(texts) - CHOICES, CHOICES - 1)
        return [(texts[at], texts[at + n]) for at in starts for n in range(1, CHOICES + 1)]
    if reads is Reads.PAIR:
        return list(zip(texts[::2], texts[1::2], strict=True))
    return [(pieces,) for pieces in texts]
