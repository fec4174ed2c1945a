"""Words that belong to no entity, by their kind: symbols and handles. W words, K tags."""

import re
import unicodedata
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from bert.tasks.spec import IGNORED_WORDS
from bert.tasks.tags import BARRED, TagScheme
from bert.tasks.task import Floats
from bert.text.offsets import distinct_characters, is_mark

Indices = NDArray[np.intp]

SYMBOLS, HANDLES = IGNORED_WORDS
# "@name"; and as tokenised tweets have it, "@ name" at the beginning, after "RT", and after another.
_HANDLE = re.compile(r"(?<![\w@])@\w+|(?:^|(?<=RT ))\W{0,3}@ \w+(?: @ \w+)*")


def without_tags(
    text: str, bounds: NDArray[np.integer], logits: Floats, scheme: TagScheme, kinds: Collection[str]
) -> Floats:
    """Return logits (W, K) by which no word at `bounds` (W, 2) of some kinds has a tag but O.

    They stay as they are where no label is O.
    """
    words = ignored_words(text, bounds, kinds) if kinds and scheme.has_outside else ()
    if not len(words):
        return logits
    logits, tagged = logits.copy(), scheme.kind_of[:-1] >= 0
    logits[np.ix_(words, tagged)] = BARRED
    return logits


def ignored_words(text: str, bounds: NDArray[np.integer], kinds: Collection[str]) -> Indices:
    """Return the words at `bounds` (W, 2) that are of one of the kinds, by their numbers."""
    found = np.zeros(len(bounds), np.bool_)
    if SYMBOLS in kinds and len(bounds) and has_symbols(text):
        starts, ends = bounds[:, 0].tolist(), bounds[:, 1].tolist()
        found |= [_is_symbol(text, start, end) for start, end in zip(starts, ends, strict=True)]
    if HANDLES in kinds and "@" in text:
        in_handles = np.zeros(len(text) + 1, np.intp)  # number of characters in handles before each
        for handle in _HANDLE.finditer(text):
            in_handles[handle.start() + 1 : handle.end() + 1] = 1
        in_handles = in_handles.cumsum()
        found |= in_handles[bounds[:, 1]] > in_handles[bounds[:, 0]]
    return np.flatnonzero(found)


def has_symbols(text: str) -> bool:
    """Tell whether a text may have symbols, fast for most texts."""
    return any(map(is_symbol, distinct_characters(text)))


def without_symbols(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the bounds of text[start:end] without the symbols and blanks at its ends; both alike where nothing is left."""
    while start < end and (is_symbol(text[start]) or is_joiner(text[start]) or text[start].isspace()):
        start += 1
    last = end
    while start < last and (
        is_symbol(text[last - 1]) or is_joiner(text[last - 1]) or text[last - 1].isspace()
    ):
        last -= 1
    while last < end and is_mark(text[last]):
        last += 1
    return start, last


def is_symbol(character: str) -> bool:
    """Tell whether a character is an emoji, a sign of currency or of mathematics, an arrow or the like."""
    return unicodedata.category(character)[0] == "S"


def is_joiner(character: str) -> bool:
    """Tell whether a character shapes the symbol before it: a joiner, a variation selector, a combining mark."""
    return unicodedata.category(character) in ("Cf", "Mn", "Me")


def _is_symbol(text: str, start: int, end: int) -> bool:
    """Tell whether a word is made of symbols; one that joins two words, as in "Ke$ha", is a part of their name."""
    word = text[start:end]
    if not any(map(is_symbol, word)) or not all(is_symbol(c) or is_joiner(c) for c in word):
        return False
    joins = text[start - 1 : start].isalnum() and text[end : end + 1].isalnum()
    return not joins or any(unicodedata.category(c) == "So" for c in word)
