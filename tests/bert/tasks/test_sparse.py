"""From a graph's scores to sparse vectors: what is kept, in which order."""

import numpy as np
import pytest

from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors.sparse import decode, query, weights_of

SPEC = TaskSpec("sparse")
SCORES = np.array([[0, 2, 0.5, 0, 3, 0.5]], np.float32)
"""(1, V)"""
TASK = TASKS["sparse"]


def test_a_weight_is_the_logarithm_of_1_and_the_score_once_or_twice() -> None:
    indices, weights = decode(TASK.shorten(SCORES), SPEC)
    assert indices.tolist() == [1, 2, 4, 5]
    assert weights == pytest.approx(np.log(1 + np.array([2, 0.5, 3, 0.5])))
    twice = decode(TASK.shorten(SCORES), TaskSpec("sparse", sparse_activation="log1p_relu"))[1]
    assert twice == pytest.approx(np.log(1 + weights))


def test_the_largest_are_kept_in_the_order_of_their_indices() -> None:
    assert decode(TASK.shorten(SCORES), SPEC, top_k=3)[0].tolist() == [1, 2, 4]  # of equal ones the first
    assert decode(TASK.shorten(SCORES), SPEC, top_k=9)[0].tolist() == [1, 2, 4, 5]
    bound = float(weights_of(np.array([0.5], np.float32), SPEC)[0])
    assert decode(TASK.shorten(SCORES), SPEC, threshold=bound)[0].tolist() == [1, 4]
    assert decode(TASK.shorten(SCORES), SPEC, top_k=1, threshold=9.0)[0].tolist() == []


def test_a_text_without_a_positive_score_has_an_empty_vector() -> None:
    rows = TASK.shorten(np.zeros((1, 6), np.float32))
    assert rows.shape == (0, 2)
    assert [each.tolist() for each in decode(rows, SPEC)] == [[], []]


def test_what_is_not_a_number_is_not_lost() -> None:
    assert not np.isfinite(TASK.shorten(np.array([[1, np.nan, 0]], np.float32))).all()


def test_a_query_has_the_weights_of_its_pieces_once() -> None:
    table = np.array([0, 5, 1, 0, 7], np.float32)
    indices, weights = query(np.array([4, 1, 1, 3, 4], np.int32), table)
    assert (indices.tolist(), weights.tolist()) == ([1, 4], [5, 7])
    assert query(np.array([4, 2, 1], np.int32), table, top_k=1)[0].tolist() == [4]
    assert query(np.zeros(0, np.int32), table)[0].tolist() == []


def test_the_self_test_compares_where_weights_are_but_not_how_many() -> None:
    (sums,) = TASK.self_test_scores([TASK.shorten(SCORES)])
    less = SCORES.copy()
    less[0, 3] = 1e-6
    assert np.abs(TASK.self_test_scores([TASK.shorten(less)])[0] - sums).max() <= 1e-6
    moved = TASK.self_test_scores([TASK.shorten(np.roll(SCORES, 1))])[0]
    assert np.abs(moved - sums).max() > 1


@pytest.mark.parametrize("values", [{"sparse_activation": "tanh"}, {"query_weights": "idf"}])
def test_a_description_that_is_not_known_is_refused(values: dict[str, str]) -> None:
    name, value = next(iter(values.items()))
    with pytest.raises(ValueError, match=rf"{name} .*'{value}'"):
        TaskSpec.from_dict({"task": "sparse", **values})
