"""Examples of words of several pieces, for maskings that choose whole words."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.pretraining_documents import FIRST, special_ids
from training.pretraining.examples.base import Example

SPECIAL = special_ids()
WORDS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=20), min_size=1, max_size=3)
"""Segments of words of so many pieces."""


def example(segments: Any) -> Example:
    continues, special = [False], [True]
    for segment in segments:
        for pieces in segment:
            continues += [False] + [True] * (pieces - 1)
            special += [False] * pieces
        continues, special = [*continues, False], [*special, True]
    ids = np.where(special, SPECIAL.sep, np.arange(len(special)) % 900 + FIRST).astype(np.int32)
    ids[0] = SPECIAL.cls
    return Example(ids, np.zeros(len(ids), np.int8), np.array(continues), np.array(special))


def keys(count: int) -> Any:
    return np.random.default_rng(1).integers(2**64, size=count, dtype=np.uint64)
