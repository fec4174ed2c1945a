"""Rows of DeBERTa's table of distances: those of transformers, exact ones near and shared ones far."""

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from bert.bodies.deberta import distance_rows, row_table

FAR = np.arange(-700, 701)


@pytest.mark.parametrize("furthest", [24, 64, 100, 128, 257, 512, 513, 1024])
def test_buckets_are_those_of_transformers(furthest: int) -> None:
    for buckets in range(2, min(300, 2 * furthest - 3)):
        theirs = make_log_bucket_position(torch.from_numpy(FAR), buckets, furthest).long().numpy()
        expected = np.clip(theirs + buckets, 0, 2 * buckets - 1)
        assert np.array_equal(distance_rows(FAR, buckets, buckets, furthest), expected), buckets


def test_without_buckets_each_distance_has_a_row() -> None:
    rows = distance_rows(FAR, 512, -1, 512)
    assert rows.tolist() == np.clip(FAR + 512, 0, 1023).tolist()


def test_near_distances_of_version_3_have_rows_of_their_own() -> None:
    rows = distance_rows(FAR, 256, 256, 512)
    near = abs(FAR) <= 128
    assert np.array_equal(rows[near], FAR[near] + 256)
    assert (np.diff(rows) >= 0).all()
    assert (rows.min(), rows[FAR == 511][0], rows.max()) == (0, 511, 511)


def test_a_table_holds_the_queries_distance_from_each_key() -> None:
    table = row_table(5, 3, -1, 3)
    assert table[0].tolist() == [3, 2, 1, 0, 0]
    assert table[:, 0].tolist() == [3, 4, 5, 5, 5]
