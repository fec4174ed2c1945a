"""Labels and words as the model reads them: [CLS] <<ENT>> label <<ENT>> label <<SEP>> words [SEP]. W words, C labels.

Where labels have an encoder of their own, it reads each as [CLS] label [SEP], and the other one the words alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Ints, Pieces, Window
from bert.tasks.prompts import room
from bert.tasks.spec import LabelPrompt, TaskSpec
from bert.tokenizer import Tokenizer

_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""A word as `gliner` splits them."""
LABEL, WORD = 1, 0
"""Sequence ids of the places of labels' vectors, and of words."""
_NO_OFFSETS = np.zeros((0, 2), np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Words of one text; one without pieces, such as a zero-width space, is left out."""

    bounds: Ints
    """(W, 2): start and end in the text, in code points."""
    ids: Sequence[Ints]
    """Ids of each word's pieces, at least one."""

    @classmethod
    def of(cls, bounds: Sequence[tuple[int, int]] | Ints, ids: Sequence[Ints]) -> "Words":
        """Leave out the words without pieces."""
        kept = [place for place, each in enumerate(ids) if len(each)]
        return cls(np.array(bounds, np.int32).reshape(-1, 2)[kept], [ids[n] for n in kept])


def word_bounds(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text, in code points."""
    return list(each_word(text))


def each_word(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word of a text, in code points."""
    return (found.span() for found in _WORD.finditer(text))


def prompt_ids(labels: Sequence[Ints], prompt: LabelPrompt) -> tuple[Ints, list[int]]:
    """Return what stands before the words, and the places in it of the labels' vectors, of the ids of C labels."""
    if prompt.has_encoder:
        return np.zeros(0, np.int32), []
    ids, places = list[int](), list[int]()
    for label in labels:
        places.append(len(ids) + prompt.reads_label)
        ids += [prompt.label_id, *label]
    return np.array([*ids, prompt.separator_id], np.int32), places


def label_input(pieces: Pieces, tokenizer: Tokenizer, max_tokens: int) -> Encoding:
    """Return a label as its own encoder reads it. Raises InputError if it is longer than that."""
    encoding = tokenizer.single(pieces, max_tokens, truncate=False)
    is_label = np.full(len(encoding), LABEL, np.int32)
    return Encoding(encoding.ids, encoding.segment_ids, _NO_OFFSETS, is_label, is_label)


def is_label_input(encoding: Encoding) -> bool:
    """Tell whether `label_input` made it: in all others the first token is special."""
    return bool(encoding.sequence_ids[0] == LABEL)


def sample_vectors(labels: int, width: int) -> NDArray[np.float32]:
    """Return made-up vectors (C, D) of labels, for texts of self-test and warm-up."""
    return np.cos(np.arange(labels * width, dtype=np.float32)).reshape(labels, width)


def cuts(lengths: Sequence[int], room: int, prompt: LabelPrompt) -> Iterator[tuple[int, int]]:
    """Yield first word and end of each window, of words with so many pieces.

    Neighbours share as many words as an entity may have, or half of the first one's, or what leaves room for the next word.
    """
    start, words = 0, len(lengths)
    while start < words:
        end, taken = start, 0
        while end < words and end - start < prompt.max_words and (taken := taken + lengths[end]) <= room:
            end += 1
        end = max(end, start + 1)  # of a longer word the first pieces are read
        yield start, end
        if end == words:
            return
        start = max(start + 1, end - min(prompt.max_width, (end - start) // 2))
        while start < end and sum(lengths[start : end + 1]) > room:  # a long word comes next
            start += 1


def windows(
    words: Words, before: tuple[Ints, Sequence[int]], tokenizer: Tokenizer, spec: TaskSpec
) -> list[Window]:
    """Return the runs that read a text's words, each behind what `prompt_ids` gave; they count words, not pieces.

    Raises InputError as `room` does.
    """
    assert spec.label_prompt is not None
    left = room(len(before[0]), spec)
    bounds = cuts([min(len(each), left) for each in words.ids], left, spec.label_prompt)
    return [Window(encode(words.ids[a:b], before, tokenizer, left), a, b) for a, b in bounds]


def encode(
    words: Sequence[Ints], before: tuple[Ints, Sequence[int]], tokenizer: Tokenizer, left: int
) -> Encoding:
    """Encode the ids of words behind what `prompt_ids` gave; of each word at most `left` are read."""
    pieces = [ids[:left] for ids in words]
    ids = np.concatenate([[tokenizer.cls_id], before[0], *pieces, [tokenizer.sep_id]]).astype(np.int32)
    word_ids, sequence_ids = np.full(len(ids), -1, np.int32), np.full(len(ids), -1, np.int32)
    labels = 1 + np.array(before[1], np.intp)
    word_ids[labels], sequence_ids[labels] = np.arange(len(labels)), LABEL
    text = slice(1 + len(before[0]), len(ids) - 1)
    word_ids[text] = np.repeat(np.arange(len(pieces)), [len(each) for each in pieces])
    sequence_ids[text] = WORD
    return Encoding(ids, np.zeros_like(ids), _NO_OFFSETS, word_ids, sequence_ids)


def places(encoding: Encoding) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the places of the labels' vectors (C,) and of each word's first piece (W,) among the encoding's tokens."""
    sequences, words = encoding.sequence_ids, encoding.word_ids
    is_word = (sequences == WORD) & (words >= 0)
    is_word[1:] &= (words[1:] != words[:-1]) | (sequences[:-1] != WORD)
    return np.flatnonzero(sequences == LABEL), np.flatnonzero(is_word)
