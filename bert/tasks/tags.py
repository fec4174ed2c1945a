"""Tags of words: what each tag of a model says of its word, and words that no tag fits. K labels, W words, E entities.

A tag is a role and a type, as B-PER. The roles are B- (begins), I- and M- (inside), E- and L- (ends), S- and U- (single).
So BIO, IOB1, BIOES, BILOU, BMES and IO are read by one rule, and tags may break their scheme. An entity goes on while the
type stays; a word that begins or is single starts another, and so does the word after one that ends or is single. Words may
be kept out of all entities by their kind: symbols and handles.
"""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.tasks.spec import IGNORED_WORDS
from bert.text.offsets import distinct_characters, is_mark

Indices = NDArray[np.intp]
Logits = NDArray[np.floating[Any]]

OUTSIDE = ("O", "o")
BARRED = -1e9
"""Logit of a tag that a word cannot have."""
_BEGINS, _INSIDE, _ENDS, _SINGLE = "B", "IM", "EL", "SU"
_ROLES = _BEGINS + _INSIDE + _ENDS + _SINGLE


@dataclass(frozen=True, slots=True, eq=False)
class TagScheme:
    """The labels' types and roles, by the labels' numbers."""

    types: tuple[str, ...]
    kind_of: NDArray[np.int64]
    """(K + 1,): index in `types`, -1 for O. The last place is that of a word without a tag, whose number is -1."""
    begins: NDArray[np.bool_]
    """(K + 1,): the tag starts an entity."""
    ends: NDArray[np.bool_]
    """(K + 1,): the entity ends with the tag's word."""
    may_follow: NDArray[np.bool_]
    """(K + 1, K): by BIO's rule a word may have tag k after one with tag j. The last row is for a text's first word."""

    @classmethod
    def of(cls, labels: Sequence[str]) -> "TagScheme":
        """Return the scheme of the labels, by these alone.

        B- and I- are always roles; another letter is one only where its type has a second role, so "E-mail" is a type.
        Small letters are roles where all labels have one.
        """
        return _scheme(tuple(labels))

    @property
    def has_outside(self) -> bool:
        """True if a label marks words outside of all entities."""
        return bool((self.kind_of[:-1] < 0).any())

    def kind(self, tag: int) -> str:
        """Return a tag's type, "" for O."""
        return self.types[self.kind_of[tag]] if self.kind_of[tag] >= 0 else ""

    def bounds(self, tags: NDArray[np.integer]) -> tuple[Indices, Indices]:
        """Return each entity's first word and one past its last, (E,) each, from tags (W,), numbers of labels."""
        kind, breaks = self.kind_of[tags], self.begins[tags]
        breaks[:1] = True
        breaks[1:] |= (kind[1:] != kind[:-1]) | self.ends[tags[:-1]]
        edges = np.append(np.flatnonzero(breaks), len(tags))
        first, last = edges[:-1], edges[1:]
        inside = kind[first] >= 0
        return first[inside], last[inside]

    def best_sequence(self, logits: Logits) -> Indices:
        """Return the tags (W,) with the highest sum of logits (W, K) of all sequences in which BIO's rule holds.

        The rule: an I- tag goes on with an entity of its type (Viterbi's algorithm). A sequence of each word's best tags
        that keeps it is the best one.
        """
        tags: Indices = logits.argmax(axis=-1)
        before = np.append(-1, tags[:-1])
        if self.may_follow[before, tags].all():
            return tags
        cost = np.where(
            self.may_follow, 0.0, BARRED
        )  # (K + 1, K); the last row is that of the text's beginning
        scores = logits[0] + cost[-1]
        back = np.zeros(logits.shape, np.intp)
        for word in range(1, len(logits)):
            paths = scores[:, None] + cost[:-1]
            back[word] = paths.argmax(axis=0)
            scores = paths.max(axis=0) + logits[word]
        tags[-1] = scores.argmax()
        for word in range(len(logits) - 1, 0, -1):
            tags[word - 1] = back[word, tags[word]]
        return tags

    def bio(self, tags: NDArray[np.integer]) -> list[str]:
        """Return tags (W,), numbers of labels, as BIO; those that are BIO stay as they are."""
        begins = self.begins[tags]
        begins[1:] |= self.ends[tags[:-1]]
        named = zip(tags.tolist(), begins.tolist(), strict=True)
        return [
            f"{'B' if begin else 'I'}-{kind}" if (kind := self.kind(tag)) else "O" for tag, begin in named
        ]


@lru_cache(maxsize=64)
def _scheme(labels: tuple[str, ...]) -> TagScheme:
    tags = [label for label in labels if label not in OUTSIDE]
    lower = all(tag[:1].islower() and _split(_capital(tag))[0] for tag in tags)
    split = [_split(_capital(tag) if lower else tag) for tag in tags]
    parted = {
        tag: (role, kind) if role in ("B", "I") or _has_other_role(role, kind, split) else ("", tag)
        for tag, (role, kind) in zip(tags, split, strict=True)
    }
    types = tuple(sorted({kind for _, kind in parted.values()}))
    found = [parted.get(label) for label in (*labels, "O")]
    roles = [tag[0] if tag else "" for tag in found]
    kinds = np.array([types.index(tag[1]) if tag else -1 for tag in found], np.int64)
    inside = np.array([role in tuple(_INSIDE + _ENDS) for role in roles], np.bool_)
    ends = np.array([role in tuple(_ENDS + _SINGLE) for role in roles], np.bool_)
    begins = np.array([role in tuple(_BEGINS + _SINGLE) for role in roles], np.bool_)
    goes_on = (kinds[:, None] == kinds[None, :-1]) & ~ends[:, None]
    may_begin = ~inside | ~np.isin(kinds, kinds[begins])  # an inside tag too, where its type has no other
    return TagScheme(
        types,
        kinds,
        begins,
        ends,
        goes_on | may_begin[None, :-1],
    )


def _capital(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _split(tag: str) -> tuple[str, str]:
    """Return what may be a tag's role, "" if it has none, and its type."""
    return (tag[0], tag[2:]) if tag[:1] in tuple(_ROLES) and tag[1:2] == "-" and tag[2:] else ("", tag)


def _has_other_role(role: str, kind: str, split: Sequence[tuple[str, str]]) -> bool:
    return any(other and other != role and kind == same for other, same in split)


SYMBOLS, HANDLES, PUNCTUATION = IGNORED_WORDS
# "@name"; and as tokenised tweets have it, "@ name" at the beginning, after "RT", and after another.
_HANDLE = re.compile(r"(?<![\w@])@\w+|(?:^|(?<=RT ))\W{0,3}@ \w+(?: @ \w+)*")


def without_tags(
    text: str, bounds: NDArray[np.integer], logits: Logits, scheme: TagScheme, kinds: Collection[str]
) -> Logits:
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
