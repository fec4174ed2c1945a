"""Pooling and ranking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

from bert.tasks.vectors import similarity
from bert.tasks.vectors.similarity import Ranked


def random(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_ranking_is_by_cosine_best_first(seed: int, n: int) -> None:
    query, candidates = random(6, seed=seed), random(n, 6, seed=seed + 1)
    expected = cosine_similarity(query[None], candidates)[0]
    found = similarity.rank(query, candidates)
    assert [r.index for r in found] == sorted(range(n), key=lambda i: -expected[i])
    assert [r.score for r in found] == pytest.approx([float(expected[r.index]) for r in found], abs=1e-5)
    assert similarity.rank(query, candidates, top_k=3) == found[:3]


def test_equal_candidates_keep_their_order() -> None:
    found = similarity.rank(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [2.0, 0.0], [5.0, 0.0]]))
    assert found == [Ranked(1, 1.0), Ranked(2, 1.0), Ranked(0, 0.0)]


@given(st.integers(0, 2**32 - 1))
def test_a_cosine_is_never_past_1(seed: int) -> None:
    vectors = random(20, 384, seed=seed)
    for scores in (similarity.cosine(vectors, vectors), similarity.cosine(vectors, -vectors)):
        assert np.abs(scores).max() <= 1 and scores.dtype == np.float32
    assert all(abs(found.score) <= 1 for found in similarity.rank(vectors[0], np.tile(vectors[0], (30, 1))))


def test_cosine_of_pairs_is_the_diagonal() -> None:
    first, second = random(4, 6), random(4, 6, seed=1)
    expected = np.diag(cosine_similarity(first, second))
    np.testing.assert_allclose(similarity.cosine(first, second), expected, rtol=1e-5)


def test_dot_products_rank_by_length_too() -> None:
    query, candidates = np.array([2.0, 0.0]), np.array([[0.5, 0.0], [1.0, 9.0], [-3.0, 0.0]])
    assert [(r.index, r.score) for r in similarity.rank(query, candidates, similarity="dot")] == [
        (1, 2.0),
        (0, 1.0),
        (2, -6.0),
    ]
    assert similarity.rank(query, candidates)[0].index == 0
    assert similarity.likeness(candidates, candidates, "dot").tolist() == [0.25, 82.0, 9.0]
    np.testing.assert_allclose(similarity.likeness(candidates, candidates, "cosine"), 1)
