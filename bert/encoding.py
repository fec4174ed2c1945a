"""Tokenised text: ids with the characters and the words that they came from.

Some tasks ask for nothing but ids, so the rest is worked out when somebody asks for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class Pieces:
    """One text as pieces, without special tokens. T pieces."""

    __slots__ = ("_offsets", "_read", "_word_ids", "ids")
    _read: Callable[[], "Pieces"]

    def __init__(self, ids: Ints, offsets: Ints, word_ids: Ints) -> None:
        """Hold what is there; nothing is copied."""
        self.ids = ids
        """(T,)"""
        self._offsets: Ints | None = offsets
        self._word_ids: Ints | None = word_ids

    @classmethod
    def of_ids(cls, ids: Ints, read: Callable[[], "Pieces"]) -> "Pieces":
        """Hold ids (T,) alone; `read` gives the rest of these pieces."""
        pieces = cls.__new__(cls)
        pieces.ids, pieces._read = ids, read
        pieces._offsets = pieces._word_ids = None
        return pieces

    @property
    def offsets(self) -> Ints:
        """(T, 2): start and end of each piece in the text, in code points."""
        if self._offsets is None:
            self._offsets = self._read().offsets
        return self._offsets

    @property
    def word_ids(self) -> Ints:
        """(T,): which word of the text a piece belongs to; a word is what lies between spaces and punctuation."""
        if self._word_ids is None:
            self._word_ids = self._read().word_ids
        return self._word_ids

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)

    def slice(self, start: int, stop: int) -> "Pieces":
        """Return pieces [start, stop); offsets and word ids stay those of the whole text."""
        if self._offsets is None or self._word_ids is None:
            read = self._read
            return Pieces.of_ids(self.ids[start:stop], lambda: read().slice(start, stop))
        return Pieces(self.ids[start:stop], self._offsets[start:stop], self._word_ids[start:stop])


class Encoding:
    """Input of the model: one or two texts with [CLS] and [SEP]. T tokens."""

    __slots__ = ("_offsets", "_sequence_ids", "_texts", "_word_ids", "ids", "segment_ids", "truncated")

    def __init__(
        self,
        ids: Ints,
        segment_ids: Ints,
        offsets: Ints,
        word_ids: Ints,
        sequence_ids: Ints,
        truncated: bool = False,
    ) -> None:
        """Hold what is there; nothing is copied."""
        self.ids = ids
        """(T,)"""
        self.segment_ids = segment_ids
        """(T,): 0 up to the first [SEP], 1 after it."""
        self.truncated = truncated
        self._texts: Sequence[Pieces] = ()
        self._offsets: Ints | None = offsets
        self._word_ids: Ints | None = word_ids
        self._sequence_ids: Ints | None = sequence_ids

    @classmethod
    def of_texts(
        cls, texts: Sequence[Pieces], cls_id: int, sep_id: int, *, truncated: bool = False
    ) -> "Encoding":
        """Put [CLS] before one or two texts and [SEP] after each; segment 0 is [CLS] first [SEP], segment 1 the rest."""
        encoding = cls.__new__(cls)
        encoding._texts, encoding.truncated = texts, truncated
        encoding._offsets = encoding._word_ids = encoding._sequence_ids = None
        length = 1 + len(texts) + sum([len(text.ids) for text in texts])
        ids, segments = np.empty(length, np.int32), np.zeros(length, np.int32)
        ids[0], at = cls_id, 1
        for text in texts:
            end = at + len(text.ids)
            ids[at:end], ids[end] = text.ids, sep_id
            at = end + 1
        if len(texts) == 2:
            segments[len(texts[0].ids) + 2 :] = 1
        encoding.ids, encoding.segment_ids = ids, segments
        return encoding

    @property
    def offsets(self) -> Ints:
        """(T, 2): code points in the token's own text; (0, 0) for special tokens."""
        if self._offsets is None:
            around = np.zeros((len(self.ids), 2), np.int32)
            self._offsets = _lay(around, [text.offsets for text in self._texts])
        return self._offsets

    @property
    def word_ids(self) -> Ints:
        """(T,): -1 for special tokens."""
        if self._word_ids is None:
            around = np.full(len(self.ids), -1, np.int32)
            self._word_ids = _lay(around, [text.word_ids for text in self._texts])
        return self._word_ids

    @property
    def sequence_ids(self) -> Ints:
        """(T,): 0 first text, 1 second text, -1 special tokens."""
        if self._sequence_ids is None:
            around = np.full(len(self.ids), -1, np.int32)
            parts = [np.full(len(text), number, np.int32) for number, text in enumerate(self._texts)]
            self._sequence_ids = _lay(around, parts)
        return self._sequence_ids

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One window over a long text."""

    encoding: Encoding
    start: int
    """Index, in the text's pieces, of the window's first piece."""
    stop: int
    """One past its last piece."""


def _lay(around: Ints, parts: Sequence[Ints]) -> Ints:
    """Put one or two texts' values where their pieces are, between the special tokens."""
    at = 1
    for part in parts:
        around[at : at + len(part)] = part
        at += len(part) + 1
    return around


def is_unicode(text: str) -> bool:
    r"""Tell whether a text has no lone surrogate.

    UTF-8 itself cannot hold one, but json may: "\ud800", half of a pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
