"""Places of words and pieces in a text: character offsets that keep marks and leave blanks out. T pieces, W words."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, normalizers, pre_tokenizers

from bert.encoding import Ints

_SPACES = [c for c in range(0x3001) if chr(c).isspace()]
_IS_SPACE = np.isin(np.arange(0x3002), _SPACES)
"""White space by code point; the last entry stands for all code points from there on."""

_FIRST_MARK = "\u0300"
_FEW_CHARACTERS = 2**12
"""Longest text whose different characters Python's own set finds fast."""
_PART = 2**13
"""Pieces whose offsets are read in one go. `Encoding.offsets` holds the interpreter's lock for 300 ns a piece."""


def word_bounds(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return start and end, in code points, of each word of each text, as BERT splits them before any vocabulary.

    Words are what lies between blanks and punctuation; a punctuation mark and a Chinese character are words of their own.
    """
    return [encoded.offsets for encoded in _split_into_words(texts)]


def _split_into_words(texts: Sequence[str]) -> list[tokenizers.Encoding]:
    found: list[tokenizers.Encoding] = _word_splitter().encode_batch(list(texts), add_special_tokens=False)
    return found


@cache
def _word_splitter() -> tokenizers.Tokenizer:
    splitter = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    splitter.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    splitter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return splitter


def word_ids(text: str, offsets: Ints, splits: Ints) -> Ints:
    """Return for each piece at `offsets` (T, 2) the word of `word_bounds` in which it starts, -1 for a blank: (T,).

    `splits` (T,) numbers the stretches that the tokenizer itself splits a text into. A piece without characters is the
    blank before a word that is written apart, and belongs to it: `transformers` gives that piece the word's label. In a
    stretch of its own, such as a line break, it is no word's.
    """
    bounds = offsets_of(_split_into_words([text])[0])
    found = np.full(len(offsets), -1, np.int32)
    if not len(bounds) or not len(offsets):
        return found
    starts = np.maximum.accumulate(offsets[:, 0])
    word = np.searchsorted(bounds[:, 1], starts, side="right").astype(np.int32)
    first = bounds[np.minimum(word, len(bounds) - 1), 0]
    inside = (word < len(bounds)) & (first < np.maximum(offsets[:, 1], starts + 1)) & ~_stray(offsets, splits)
    found[inside] = word[inside]
    return _without_gaps(found)


def _stray(offsets: Ints, splits: Ints) -> NDArray[np.bool_]:
    """Return which pieces (T,) have no characters, nor a piece with some after them in the same stretch."""
    is_blank = offsets[:, 0] >= offsets[:, 1]
    later = np.where(is_blank, np.iinfo(np.int32).max, splits)[::-1]
    next_split = np.minimum.accumulate(later)[::-1]
    stray: NDArray[np.bool_] = is_blank & (next_split != splits)
    return stray


def _without_gaps(ids: Ints) -> Ints:
    """Return word ids (T,) with a piece of no word between two pieces of one word given to that word."""
    before = np.maximum.accumulate(ids)
    after = np.minimum.accumulate(np.where(ids < 0, np.iinfo(np.int32).max, ids)[::-1])[::-1]
    return np.where((ids < 0) & (before == after), before, ids)


def trim_spaces(text: str, offsets: Ints) -> None:
    """Take the white space off both ends of each span in `offsets` (T, 2), in place.

    A span of nothing but white space becomes empty, at its end.
    """
    space = _IS_SPACE[np.minimum(_code_points(text), len(_IS_SPACE) - 1)]  # (code points,)
    places = np.arange(len(text) + 1, dtype=np.int32)
    next_letter = np.minimum.accumulate(np.where(np.append(space, False), len(text), places)[::-1])[::-1]
    after_letter = np.maximum.accumulate(np.where(np.insert(space, 0, True), 0, places))
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    offsets[:, 0] = np.minimum(next_letter[starts], ends)
    offsets[:, 1] = np.where(offsets[:, 0] < ends, after_letter[ends], ends)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def offsets_of(encoded: tokenizers.Encoding) -> Ints:
    """Return start and end of each piece, (T, 2), as the library counts them."""
    pieces = len(encoded)
    if pieces <= _PART:
        return np.array(encoded.offsets, np.int32).reshape(-1, 2)
    offsets = np.empty((pieces, 2), np.int32)
    for start in range(0, pieces, _PART):
        part = range(start, min(start + _PART, pieces))
        offsets[start : part.stop] = [encoded.token_to_chars(index) or (0, 0) for index in part]
    return offsets


def distinct_characters(text: str) -> set[str]:
    """Return the different characters of a text; other threads can run meanwhile, however long it is."""
    if len(text) <= _FEW_CHARACTERS:
        return set(text)
    points = _code_points(text)
    is_there = np.zeros(int(points.max()) + 1, np.bool_)
    is_there[points] = True
    return set(map(chr, np.flatnonzero(is_there).tolist()))


class MarkEnds:
    """Ends of the combining marks and variation selectors of a text, found in one pass over it.

    A tokenizer may drop marks or have pieces of their own for them, so that a stretch of whole pieces can end before
    them, and an answer that ends there would lose an accent.
    """

    __slots__ = ("_ends",)

    def __init__(self, text: str) -> None:
        """Look through a text once; for one with marks 4 bytes a character are kept."""
        self._ends: Ints | None = None
        if text.isascii():
            return
        marks = [ord(c) for c in distinct_characters(text) if is_mark(c)]
        if not marks:
            return
        points = _code_points(text)
        marked = np.zeros(int(points.max()) + 1, np.bool_)
        marked[marks] = True
        places = np.arange(len(text) + 1, dtype=np.int32)
        places[:-1][marked[points]] = len(text)
        self._ends = np.minimum.accumulate(places[::-1])[::-1]

    def after(self, ends: NDArray[np.integer]) -> NDArray[np.intp]:
        """Return `ends` (N,), code points of the text, each moved past the marks that begin there."""
        return np.asarray(ends if self._ends is None else self._ends[ends], np.intp)


def is_mark(character: str) -> bool:
    """Tell whether a character is a combining mark or a variation selector."""
    return character >= _FIRST_MARK and unicodedata.category(character) in ("Mn", "Me")


def extend_over_marks(text: str, offsets: Ints) -> None:
    """Move each end in `offsets` (T, 2), in place, past the marks that follow it, at most to the next piece.

    An uncased tokenizer drops accents, so a decomposed "e" + U+0301 gives a piece over the "e" alone.
    """
    starts, ends = offsets[1:, 0], offsets[:, 1]
    limits = np.append(starts, len(text))
    offsets[:, 1] = np.maximum(ends, np.minimum(MarkEnds(text).after(ends), limits))


def span_bounds(offsets: Ints) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the start of a span that begins with each piece at `offsets` (T, 2), and the end of one that ends with it.

    A blank piece has no characters: a span from it on starts with the next piece that has some.
    """
    starts, ends = offsets.T.astype(np.intp)
    is_blank = starts >= ends
    later = np.where(is_blank, np.iinfo(np.intp).max, starts)[::-1]
    return np.minimum.accumulate(later)[::-1], np.maximum.accumulate(np.where(is_blank, 0, ends))


_ALONE = (
    "\u3001-\u3003\u3008-\u3011\u3014-\u301f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\U00020000-\U0003ffff"
)
"""Chinese characters and their punctuation: each is a word to `bert.text.offsets`, with blanks around it or without."""
_BESIDE = _ALONE + "\u3005-\u3007\u3040-\u30ff\uff10-\uff9f\u00b7\u2010-\u2027"
"""Those, kana, wide digits and letters, and marks that European texts have too."""
_UNSPACED = re.compile(f"[{_ALONE}][{_BESIDE}]|[{_BESIDE}][{_ALONE}]")


def join_words(words: Sequence[str]) -> str:
    """Return words as one text. SentencePiece and byte-level BPE have other pieces for Chinese with blanks in it.

    A blank is left out only where its absence leaves the words what they are (`bert.text.offsets.word_bounds`).
    """
    starts = word_starts(words)
    ends = (0, *(start + len(word) for start, word in zip(starts, words, strict=True)))
    parts = zip(starts, ends, words, strict=False)
    return "".join(" " * (start - end) + word for start, end, word in parts)


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the first code point of each word in `join_words(words)`."""
    starts, end, before = list[int](), -1, ""
    for word in words:
        starts.append(end + (0 if _UNSPACED.fullmatch(before + word[:1]) else 1))
        end, before = starts[-1] + len(word), word[-1:]
    return starts
