"""Scores of a search: the place of the right text among all. N queries, C candidates, E width."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1024
"""Queries whose cosines with all candidates are in memory at once."""
Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Retrieved:
    """Results of a search."""

    ranks: Indices
    """(N,): place of the right candidate, from 1. Those with an equal score count as better."""
    nearest: Indices
    """(N,): candidate with the highest score."""

    @property
    def recall_at_1(self) -> float:
        """Share of queries whose right candidate is the nearest."""
        return float((self.ranks == 1).mean())

    @property
    def mrr(self) -> float:
        """Mean of one over the rank."""
        return float((1 / self.ranks).mean())


def retrieve(
    queries: Floats, candidates: Floats, right: Sequence[int], ignored: Sequence[Sequence[int]]
) -> Retrieved:
    """Search the candidates (C, E) for each query (N, E), all of length 1, by cosine.

    `right` is the index of the candidate to find, `ignored` are those of others that no search counts.
    """
    ranks, nearest = np.empty(len(queries), np.int64), np.empty(len(queries), np.int64)
    for start in range(0, len(queries), AT_ONCE):
        scores = queries[start : start + AT_ONCE] @ candidates.T
        for row, own in enumerate(right[start : start + AT_ONCE]):
            place = start + row
            scores[row, list(ignored[place])] = -np.inf
            ranks[place] = np.count_nonzero(scores[row] >= scores[row, own])
            nearest[place] = scores[row].argmax()
    return Retrieved(ranks, nearest)
