"""Sparse vectors: a weight for each piece of the vocabulary, most of them 0. V vocabulary, K weights above 0.

SPLADE (Formal et al. 2021, arXiv 2107.05720): the largest score that a masked language model gives a piece at any token of a
text, made positive and flattened by log(1 + x). Graphs give the positive scores; all that is done to single numbers is done
here, to those above 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Ints
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Task

SUMS = 64
"""Sums of scores that a bundle's self-test compares: a score that is 0 on one processor may be little more on another."""


def weights_of(scores: Floats, spec: TaskSpec) -> Floats:
    """Return the weights of positive scores of any shape: log(1 + x), taken twice where the model says so."""
    flat: Floats = np.log1p(scores)
    return np.log1p(flat) if spec.sparse_activation == "log1p_relu" else flat


def decode(
    scores: Floats, spec: TaskSpec, top_k: int | None = None, threshold: float = 0.0
) -> tuple[NDArray[np.int32], Floats]:
    """Return indices (K,), ascending, and weights (K,) of a text's shortened scores (K, 2).

    Only the `top_k` largest weights above `threshold` are kept; of equal ones those of lower indices.
    """
    return chosen(scores[:, 0].astype(np.int32), weights_of(scores[:, 1], spec), top_k, threshold)


def query(ids: Ints, table: Floats, top_k: int | None = None, threshold: float = 0.0) -> tuple[Ints, Floats]:
    """Return indices and weights of a query's pieces, ids in any number and order, from the table (V,) of weights.

    A piece counts once. Filtered as by `decode`.
    """
    indices = np.unique(ids).astype(np.int32)
    return chosen(indices, table[indices], top_k, threshold)


def chosen(indices: Ints, weights: Floats, top_k: int | None, threshold: float) -> tuple[Ints, Floats]:
    """Return the `top_k` largest weights above `threshold` with their indices, which are ascending."""
    kept = np.flatnonzero(weights > threshold)
    if top_k is not None and len(kept) > top_k:
        kept = np.sort(kept[np.argsort(-weights[kept], kind="stable")[:top_k]])
    return indices[kept], weights[kept]


class SparseTask(Task):
    """A weight for each piece of the vocabulary; two texts are as alike as the dot product of their weights."""

    name = "sparse"
    head = Head.VOCABULARY
    takes_largest = True
    has_one_position = True
    fixed_outputs = 0  # the head is as wide as the vocabulary
    compares = Compared.ORDER  # of the dot products of every two texts
    has_top_labels = False
    needs_pairs = True

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: each text's largest score of each piece, and 0 for one below 0."""
        return "logits", vocab_size

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the weights."""
        return [weights_of(scores, spec) for scores in outputs]

    def shorten(self, output: Floats) -> Floats:
        """Return indices and scores (K, 2) of those above 0, of (1, V).

        Indices are whole numbers in float32, exact up to 2 ** 24: so they travel as any other head's output does. What is
        not a number stays in, so that it is found.
        """
        (scores,) = output
        indices = np.flatnonzero(~(scores <= 0))
        return np.stack([indices.astype(np.float32), scores[indices]], axis=1)

    def self_test_scores(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return sums (1, SUMS) of scores, those of indices that are equal modulo SUMS."""
        sums = [np.bincount(rows[:, 0].astype(int) % SUMS, rows[:, 1], SUMS) for rows in outputs]
        return [each.astype(np.float32)[None] for each in sums]
