"""Schemes of tags: what each tag of a model says of its word. K labels, W words, E entities.

A tag is a role and a type, as B-PER. The roles are B- (begins), I- and M- (inside), E- and L- (ends), S- and U- (single).
So BIO, IOB1, BIOES, BILOU, BMES and IO are read by one rule, and tags may break their scheme. An entity goes on while the
type stays; a word that begins or is single starts another, and so does the word after one that ends or is single.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

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

    def best_sequence(self, logits: NDArray[np.floating[Any]]) -> Indices:
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
