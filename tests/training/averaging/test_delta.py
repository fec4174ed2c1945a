"""Differences to a base, as peft and this project read them."""

import numpy as np
import pytest

from training.averaging.delta import factorize


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (12, 12)])
@pytest.mark.parametrize("rank", [1, 5, 12, 20])
def test_factors_are_those_of_the_truncated_svd(shape: tuple[int, int], rank: int) -> None:
    difference = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    u, s, vt = np.linalg.svd(difference, full_matrices=False)
    a, b, (kept, all_) = factorize(difference, rank)
    assert a.shape == (rank, shape[1]) and b.shape == (shape[0], rank)
    np.testing.assert_allclose(b @ a, (u[:, :rank] * s[:rank]) @ vt[:rank], atol=1e-5)
    assert kept == pytest.approx((s[:rank] ** 2).sum()) and all_ == pytest.approx((s**2).sum())
    np.testing.assert_allclose((a**2).sum(1), (b**2).sum(0), rtol=1e-5)


def test_no_difference_has_factors_of_zeros() -> None:
    a, b, sums = factorize(np.zeros((4, 6), np.float32), 3)
    assert not a.any() and not b.any() and sums == (0.0, 0.0)
