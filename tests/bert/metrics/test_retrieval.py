"""A search against one that is written out."""

import numpy as np

from bert.metrics import retrieval
from bert.metrics.retrieval import retrieve


def test_ranks_are_those_of_a_sorted_list(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(retrieval, "AT_ONCE", 4)
    rng = np.random.default_rng(0)
    queries, candidates = (rng.normal(size=(n, 5)).astype(np.float32) for n in (10, 15))
    right = rng.integers(0, 15, 10).tolist()
    ignored = [[i for i in rng.integers(0, 15, 3).tolist() if i != own] for own in right]
    found = retrieve(queries, candidates, right, ignored)
    for row, own in enumerate(right):
        left = [i for i in range(15) if i not in ignored[row]]
        order = sorted(left, key=lambda i: -float(queries[row] @ candidates[i]))
        assert found.ranks[row] == order.index(own) + 1
        assert found.nearest[row] == order[0]
    assert found.recall_at_1 == np.mean([rank == 1 for rank in found.ranks])
    assert found.mrr == np.mean([1 / rank for rank in found.ranks])


def test_a_model_that_gives_one_vector_finds_nothing() -> None:
    vectors = np.ones((4, 3), np.float32)
    found = retrieve(vectors, vectors, [0, 1, 2, 3], [[]] * 4)
    assert found.ranks.tolist() == [4, 4, 4, 4]
