"""The correlations against scipy."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from bert.metrics.correlation import pearson, spearman

Numbers = list[float]
PAIRS = st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)), min_size=2)
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2)  # scores as in STS-B: many ties


def _columns(pairs: list[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    first, second = zip(*pairs, strict=True)
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    return list(first), list(second)


@given(STEPS)
def test_pearson_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = _columns(pairs)
    assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-12)


@given(st.one_of(PAIRS, STEPS))
def test_spearman_is_scipys_with_ties_too(pairs: list[tuple[float, float]]) -> None:
    first, second = _columns(pairs)
    expected = stats.spearmanr(first, second).statistic
    assert spearman(first, second) == pytest.approx(expected, abs=1e-12)


def test_pearson_of_real_looking_scores_is_scipys() -> None:
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 1500)
    predicted = gold + rng.normal(0, 1, 1500)
    assert pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted).statistic)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_very_small_and_very_large_numbers_keep_their_correlation(scale: float) -> None:
    values = np.array([1.0, 2.0, 4.0]) * scale
    assert pearson(values, [1.0, 2.0, 4.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("score", [pearson, spearman])
@pytest.mark.parametrize("pair", [([1.0, 1.0], [1.0, 2.0]), ([1.0], [2.0])])
def test_what_has_no_correlation_is_nan(score: object, pair: tuple[Numbers, Numbers]) -> None:
    assert callable(score)
    assert math.isnan(score(*pair))


def test_nan_among_the_predictions_gives_nan() -> None:
    assert math.isnan(spearman([1.0, 2.0, 3.0], [1.0, math.nan, 2.0]))
    assert math.isnan(pearson([1.0, 2.0, 3.0], [1.0, math.nan, 2.0]))


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        pearson([1.0, 2.0], [1.0])


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        spearman([], [])
