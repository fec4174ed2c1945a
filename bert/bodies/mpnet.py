"""MPNet's body, BERT's with relative positions: a query and a key have a bias by a bucket of their distance.

The rule is T5's for both directions (Raffel et al. 2019, arXiv 1910.10683), as `transformers` has it for MPNet: the
numbers are fixed, whatever its config says. T tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.bodies.bert import BertBody
from bert.bodies.body import Shape
from bert.bodies.sizes import Sizes, is_whole
from bert.errors import ConfigError

RELATIVE_BIAS = "bert.encoder.relative_attention_bias.weight"
"""Attention bias of each bucket and each head."""
BUCKETS = 32
"""Buckets of both directions together."""
EXACT = 8
"""Distances below it have a bucket each."""
FURTHEST = 128
"""Distance from which on all share the last bucket of their direction."""


@dataclass(frozen=True, slots=True)
class MpnetBody(BertBody):
    """The body of Song et al. 2020 (arXiv 2004.09297)."""

    relative_attention_num_buckets: int = BUCKETS
    """Rows of the table of attention biases."""

    @property
    def has_score_terms(self) -> bool:
        """Return True: the bias by distance."""
        return True

    def check(self, sizes: Sizes) -> None:
        """Raise ConfigError for a table that lacks a bucket."""
        buckets = self.relative_attention_num_buckets
        if not is_whole(buckets) or buckets < BUCKETS:
            raise ConfigError(f"relative_attention_num_buckets ({buckets!r}) must be at least {BUCKETS}")

    def _additional_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        yield RELATIVE_BIAS, (self.relative_attention_num_buckets, sizes.num_attention_heads)


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
