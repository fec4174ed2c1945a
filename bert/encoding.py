"""Tokenised text: ids with the characters and the words that they came from.

Some tasks ask for nothing but ids, so the rest is worked out when somebody asks for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
MASK_WORD = -2
"""Word id of a mask, which is of no word."""


class Pieces:
    """One text as pieces, without special tokens. T pieces."""

    __slots__ = ("_find_words", "_offsets", "_read", "_word_ids", "ids", "segments")
    _read: Callable[[], "Pieces"]
    _find_words: Callable[[], Ints]

    def __init__(
        self,
        ids: Ints,
        offsets: Ints,
        word_ids: Ints | Callable[[], Ints],
        segments: Ints | None = None,
    ) -> None:
        """Hold what is there; nothing is copied. Word ids may be a function that finds them."""
        self.ids = ids
        """(T,)"""
        self.segments = segments
        """(T,): segments of the pieces where they say something of the text, as letter shapes do; None elsewhere."""
        self._offsets: Ints | None = offsets
        self._word_ids: Ints | None = None
        if callable(word_ids):
            self._find_words = word_ids
        else:
            self._word_ids = word_ids

    @classmethod
    def of_ids(cls, ids: Ints, read: Callable[[], "Pieces"]) -> "Pieces":
        """Hold ids (T,) alone; `read` gives the rest of these pieces."""
        pieces = cls.__new__(cls)
        pieces.ids, pieces.segments, pieces._read = ids, None, read
        pieces._find_words = lambda: read().word_ids
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
        """(T,): which word of the text a piece belongs to, -1 for a blank.

        A word is what lies between spaces and punctuation (`bert.text.offsets.word_bounds`).
        """
        if self._word_ids is None:
            self._word_ids = self._find_words()
        return self._word_ids

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)

    def slice(self, start: int, stop: int) -> "Pieces":
        """Return pieces [start, stop); offsets and word ids stay those of the whole text."""
        if self._offsets is None:
            read = self._read
            return Pieces.of_ids(self.ids[start:stop], lambda: read().slice(start, stop))
        words = self._word_ids
        return Pieces(
            self.ids[start:stop],
            self._offsets[start:stop],
            words[start:stop] if words is not None else lambda: self.word_ids[start:stop],
            None if self.segments is None else self.segments[start:stop],
        )


@dataclass(frozen=True, slots=True)
class PairForm:
    """Special tokens around one text, `cls_id` A `sep_id`, and two, `cls_id` A `between` B `sep_id`."""

    cls_id: int
    sep_id: int
    between: tuple[int, ...]
    """Ids of the one or two tokens between two texts; their segment is 0."""
    second_segment: int = 1
    """Segment of the second text and of the token after it."""

    def special_tokens(self, texts: int) -> int:
        """Return how many special tokens stand around one text, or two."""
        return 2 if texts == 1 else 2 + len(self.between)


class Encoding:
    """Input of the model: one or two texts with special tokens around them. T tokens."""

    __slots__ = (
        "_offsets",
        "_sequence_ids",
        "_texts",
        "_word_ids",
        "chunk_starts",
        "ids",
        "label_vectors",
        "segment_ids",
        "truncated",
    )

    def __init__(
        self,
        ids: Ints,
        segment_ids: Ints,
        offsets: Ints,
        word_ids: Ints,
        sequence_ids: Ints,
    ) -> None:
        """Hold what is there; nothing is copied."""
        self.ids = ids
        """(T,)"""
        self.segment_ids = segment_ids
        """(T,): 0 up to the second text, what its tokenizer says (`PairForm`) from there on; or letter shapes."""
        self.truncated = False
        self.label_vectors: NDArray[np.float32] | None = None
        """(C, D): vectors of the labels that the text is judged for, where labels have an encoder of their own."""
        self.chunk_starts: Ints | None = None
        """(C,): first token of each chunk, of a text whose chunks are pooled one by one; the first is 0."""
        self._texts: Sequence[Pieces] = ()
        self._offsets: Ints | None = offsets
        self._word_ids: Ints | None = word_ids
        self._sequence_ids: Ints | None = sequence_ids

    @classmethod
    def of_texts(cls, texts: Sequence[Pieces], form: PairForm, *, truncated: bool = False) -> "Encoding":
        """Put the special tokens of `form` around one or two texts."""
        encoding = cls.__new__(cls)
        encoding._texts, encoding.truncated = texts, truncated
        encoding.label_vectors = encoding.chunk_starts = None
        encoding._offsets = encoding._word_ids = encoding._sequence_ids = None
        first = texts[0].ids
        end = 1 + len(first)
        if len(texts) == 1:
            ids, segments = np.empty(end + 1, np.int32), np.zeros(end + 1, np.int32)
            if texts[0].segments is not None:
                segments[1:end] = texts[0].segments
        else:
            second = texts[1].ids
            start = end + len(form.between)
            length = start + len(second) + 1
            ids, segments = np.empty(length, np.int32), np.zeros(length, np.int32)
            ids[start:-1] = second
            for place, special in enumerate(form.between, end):
                ids[place] = special
            segments[start:] = form.second_segment
        ids[0], ids[1:end], ids[-1] = form.cls_id, first, form.sep_id
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

    @property
    def first_token(self) -> int:
        """Index in the encoding of the window's first piece; the last token is the closing [SEP]."""
        return len(self.encoding) - 1 - (self.stop - self.start)

    def context(self) -> NDArray[np.float64]:
        """Return how much of its surroundings the window shows of each of its pieces, (stop - start,).

        It is google-research/bert's rule (`_check_is_max_context`): the smaller of the number of pieces to the left and to
        the right inside the window, plus a hundredth of the window's length.
        """
        pieces = self.stop - self.start
        to_the_left = np.arange(pieces)
        return np.minimum(to_the_left, to_the_left[::-1]) + 0.01 * pieces


def owned_pieces(windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    """Return which pieces of each window, (stop - start,), have the most context in it; the first wins a tie."""
    if len(windows) == 1:
        return [np.ones(windows[0].stop - windows[0].start, np.bool_)]
    pieces = max((window.stop for window in windows), default=0)
    most, owner = np.full(pieces, -1.0), np.full(pieces, -1)
    for index, window in enumerate(windows):
        span, here = slice(window.start, window.stop), window.context()
        better = here > most[span]
        most[span][better] = here[better]
        owner[span][better] = index
    return [owner[window.start : window.stop] == index for index, window in enumerate(windows)]


def _lay(around: Ints, parts: Sequence[Ints]) -> Ints:
    """Put one or two texts' values where their pieces are: after the first token, and before the last."""
    around[1 : 1 + len(parts[0])] = parts[0]
    if len(parts) == 2:
        end = len(around) - 1
        around[end - len(parts[1]) : end] = parts[1]
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
