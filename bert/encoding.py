"""What tokenising gives: ids with the characters and the words that they came from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """One text as pieces, without special tokens. T pieces."""

    ids: Ints
    """(T,)"""
    offsets: Ints
    """(T, 2): start and end of each piece in the text, in code points."""
    word_ids: Ints
    """(T,): which word of the text a piece belongs to; a word is what lies between spaces and punctuation."""

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)

    def slice(self, start: int, stop: int) -> "Pieces":
        """Return pieces [start, stop); offsets and word ids stay those of the whole text."""
        return Pieces(self.ids[start:stop], self.offsets[start:stop], self.word_ids[start:stop])


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """What the model reads: one or two texts with [CLS] and [SEP]. T tokens."""

    ids: Ints
    """(T,)"""
    segment_ids: Ints
    """(T,): 0 up to the first [SEP], 1 after it."""
    offsets: Ints
    """(T, 2): code points in the token's own text; (0, 0) for special tokens."""
    word_ids: Ints
    """(T,): -1 for special tokens."""
    sequence_ids: Ints
    """(T,): 0 first text, 1 second text, -1 special tokens."""
    truncated: bool = False

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
