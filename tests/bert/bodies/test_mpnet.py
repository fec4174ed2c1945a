"""MPNet's buckets are those of transformers at any distance."""

import numpy as np
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from bert.bodies.mpnet import BUCKETS, bucket_table, relative_buckets


def test_buckets_are_those_of_transformers() -> None:
    offsets = np.arange(-600, 601)
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(-offsets))  # key less query
    found = relative_buckets(offsets)
    assert np.array_equal(found, theirs.numpy())
    assert set(found.tolist()) <= set(range(BUCKETS))


def test_a_table_has_a_row_for_each_query() -> None:
    table = bucket_table(4)
    assert table.tolist() == [[0, 17, 18, 19], [1, 0, 17, 18], [2, 1, 0, 17], [3, 2, 1, 0]]
