"""MPNet's relative positions: the attention bias of a query and a key depends on a bucket of their distance.

The rule is T5's for both directions (Raffel et al. 2019, arXiv 1910.10683), as `transformers` has it for MPNet: the
numbers are fixed, whatever its config says. T tokens.
"""

import numpy as np
from numpy.typing import NDArray

BUCKETS = 32
"""Buckets of both directions together."""
EXACT = 8
"""Distances below it have a bucket each."""
FURTHEST = 128
"""Distance from which on all share the last bucket of their direction."""


def relative_buckets(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each offset, the query's position less the key's; of the same shape."""
    half = BUCKETS // 2
    distances = np.abs(offsets)
    growth = np.log(np.maximum(distances, EXACT) / EXACT) / np.log(FURTHEST / EXACT)
    far = np.minimum(EXACT + (growth * (half - EXACT)).astype(np.int64), half - 1)
    return np.where(offsets < 0, half, 0) + np.where(distances < EXACT, distances, far)


def bucket_table(tokens: int) -> NDArray[np.int64]:
    """Return the bucket of each query (row) and key (column) of a text, (T, T)."""
    places = np.arange(tokens)
    return relative_buckets(places[:, None] - places)
