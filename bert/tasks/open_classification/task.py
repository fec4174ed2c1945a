"""The task of models that judge all labels of a request in one run, and how they read them.

[CLS] <<LABEL>> label <<LABEL>> label <<SEP>> text [SEP], or with the text first. T tokens, C labels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Ints, Pieces
from bert.errors import TextTooLongError
from bert.tasks.prompts import fitting_labels, room
from bert.tasks.spec import ClassPrompt, TaskSpec
from bert.tasks.task import Floats, Head, Positions, Task, sigmoid
from bert.tokenizer import Tokenizer

SAMPLE_LABELS = ("travel", "business", "politics", "nature", "family", "war", "music", "food")
"""Labels that texts of export, self-test and warm-up are read with."""
LABEL, TEXT = 1, 0
"""Sequence ids of the places that a label's vector is made of, and of the text's."""
_NO_OFFSETS = np.zeros((0, 2), np.int32)


def prompt_ids(labels: Sequence[Ints], prompt: ClassPrompt) -> tuple[Ints, NDArray[np.intp]]:
    """Return labels of these ids with their special tokens, and the places of these, (C,)."""
    ids = [token for label in labels for token in (prompt.label_id, *label)]
    places = np.cumsum([0, *(len(label) + 1 for label in labels)])[:-1]
    return np.array([*ids, prompt.separator_id], np.int32), places


def encode(
    text: Pieces,
    labels: tuple[Ints, NDArray[np.intp]],
    tokenizer: Tokenizer,
    spec: TaskSpec,
    *,
    truncate: bool = False,
) -> Encoding:
    """Return a text beside the labels of `prompt_ids`; the text alone is cut.

    Raises TextTooLongError for a longer one unless `truncate`, and InputError for labels that leave it no room.
    """
    prompt, (beside, marks) = spec.class_prompt, labels
    assert prompt is not None
    left = room(len(beside), spec)
    if len(text) > left and not truncate:
        raise TextTooLongError(2 + len(beside) + len(text), spec.max_tokens)
    read = text.ids[:left]
    parts = (read, beside) if prompt.text_first else (beside, read)
    ids = np.concatenate([[tokenizer.cls_id], *parts, [tokenizer.sep_id]]).astype(np.int32)
    marks = marks + (1 + len(read) if prompt.text_first else 1)
    separator = (len(read) if prompt.text_first else 0) + len(beside)
    if prompt.label_pooling == "average":
        places = np.arange(marks[0], separator if prompt.text_pooling == "separator" else len(ids))
    else:
        places = marks + (0 if prompt.reads_marker else 1)
    words, sequences, segments = (np.full(len(ids), value, np.int32) for value in (-1, -1, 0))
    words[places], sequences[places] = np.searchsorted(marks, places, side="right") - 1, LABEL
    sequences[separator if prompt.text_pooling == "separator" else 0] = TEXT
    segments[separator if prompt.has_segments else len(ids) :] = 1
    encoding = Encoding(ids, segments, _NO_OFFSETS, words, sequences)
    encoding.truncated = len(text) > left
    return encoding


class OpenClassificationTask(Task):
    """A score for each label that stands beside a text. R is C, a row for each label."""

    name = "open_classification"
    head = Head.PROMPTED
    fixed_outputs = 1
    reads_words = True

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the place of the text's vector, and then those of the labels' vectors."""
        is_text, is_label = (encoding.sequence_ids == kind for kind in (TEXT, LABEL))
        return np.concatenate([np.flatnonzero(is_text)[:1], np.flatnonzero(is_label)])

    def output_rows(self, encoding: Encoding) -> int:
        """Return the number of labels."""
        return 1 + int(encoding.word_ids[encoding.sequence_ids == LABEL].max(initial=-1))

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode the beginning of a text with SAMPLE_LABELS, as many of them as there is room for."""
        assert spec.class_prompt is not None
        labels = fitting_labels(tokenizer, SAMPLE_LABELS, spec.max_tokens)
        return [encode(text[0], prompt_ids(labels, spec.class_prompt), tokenizer, spec, truncate=True)]

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the probability of each label alone."""
        return [sigmoid(scores) for scores in outputs]

    def top_labels(self, outputs: Sequence[Floats]) -> NDArray[np.intp] | None:
        """Return the best label of each text."""
        return np.array([scores.argmax() for scores in outputs], np.intp)
