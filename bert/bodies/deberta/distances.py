"""DeBERTa's relative positions: a query and a key read a row of one table by the distance between them.

He et al. 2020 (arXiv 2006.03654); the buckets that widen with the distance are those of version 2. T tokens.
"""

import numpy as np
from numpy.typing import NDArray


def distance_rows(distances: NDArray[np.int64], span: int, buckets: int, furthest: int) -> NDArray[np.int64]:
    """Return the row of the table, 0 to 2 * span - 1, of each distance, the query's position less the key's.

    Without `buckets` each distance has a row of its own. With them, those above half their number share a row with more
    and more neighbours, up to `furthest`. What is further apart has the outermost row of its direction.
    """
    found = _log_buckets(distances, buckets, furthest) if buckets > 0 else distances
    return np.clip(found + span, 0, 2 * span - 1)


def row_table(tokens: int, span: int, buckets: int, furthest: int) -> NDArray[np.int64]:
    """Return the row of each query (row) and key (column) of a text, (T, T)."""
    rows = distance_rows(np.arange(1 - tokens, tokens), span, buckets, furthest)
    places = np.arange(tokens)
    return np.take(rows, places[:, None] - places + tokens - 1)


def _log_buckets(distances: NDArray[np.int64], buckets: int, furthest: int) -> NDArray[np.int64]:
    middle = buckets // 2
    # In float32 as in `transformers`: other rounding would give a distance to another bucket.
    # The logarithms themselves are rounded once, from float64.
    reached = np.maximum(np.abs(distances), middle)
    growth = _log32(reached / middle) / _log32(np.array((furthest - 1) / middle))
    far = np.ceil(growth * np.float32(middle - 1)).astype(np.int64) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * far)


def _log32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return logarithms of values rounded to float32, correctly rounded to float32."""
    return np.log(values.astype(np.float32).astype(np.float64)).astype(np.float32)
