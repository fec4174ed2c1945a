"""Similar words in place of [MASK]: MacBERT (Cui et al. 2020, arXiv 2004.13922, 3).

W words of n pieces, K neighbours of each, M masked positions, R masked words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.pretraining.examples.base import Ints
from training.pretraining.masking.base import Chosen, MaskingBatch, Offsets
from training.pretraining.masking.counter_rng import PIECE
from training.pretraining.masking.ngrams import NGramMasking

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class WordTable(NamedTuple):
    """Words of one number of pieces, and the words most like each."""

    hashes: NDArray[np.uint64]
    """(W,) `word_hashes` of the words, ascending"""
    pieces: Ints
    """(W, n)"""
    near: Ints
    """(W, K) places of near words in this table, nearest first, filled up with -1"""

    def draw(self, words: Ints, u: NDArray[np.float64]) -> Ints:
        """Return the pieces (R, n) of a near word of each word (R, n), chosen by u (R,) in [0, 1); -1 where none is."""
        place = np.minimum(np.searchsorted(self.hashes, word_hashes(words)), len(self.hashes) - 1)
        known = (self.pieces[place] == words).all(axis=1)
        near = np.where(known[:, None], self.near[place], -1)
        count = (near >= 0).sum(axis=1)
        chosen = near[np.arange(len(near)), (u * count).astype(np.int64)]
        drawn: Ints = np.where(chosen[:, None] >= 0, self.pieces[chosen], -1)
        return drawn


SimilarWords = Mapping[int, WordTable]
"""Number of pieces → the words of that many; `word_neighbours` finds them."""


def word_hashes(words: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return a number for each of some words (W, n), different for all but improbable pairs."""
    hashes = np.zeros(len(words), np.uint64)
    for column in words.T:
        hashes = (hashes + column.astype(np.uint64) + np.uint64(1)) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes


@dataclass(frozen=True)
class SimilarWordMasking(NGramMasking):
    """N-grams of up to four words; one draw a word makes it a similar word, random pieces, or keeps it.

    A similar word has as many pieces as the word that it replaces, so the text keeps its length. A word without a similar
    one becomes random pieces. `mask_share` is the share of similar words: there is no [MASK] in the text.
    """

    usual_shares: ClassVar[tuple[float, ...]] = (0.4, 0.3, 0.2, 0.1)
    similar: SimilarWords = field(default_factory=dict)

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        return Chosen(*self._ngrams(batch, budgets))

    def _instead(self, batch: MaskingBatch, chosen: Chosen) -> Ints:
        ids = self._random(batch, chosen.positions)
        first = np.flatnonzero(chosen.positions == chosen.leaders)
        size = np.diff(first, append=len(ids))
        for pieces in np.unique(size).tolist():
            if pieces in self.similar:
                at = first[size == pieces]
                of_words = at[:, None] + np.arange(pieces)
                words = batch.ids[chosen.positions[of_words]]
                found = self.similar[pieces].draw(words, batch.uniform(chosen.positions[at], PIECE))
                ids[of_words] = np.where(found >= 0, found, ids[of_words])
        return ids
