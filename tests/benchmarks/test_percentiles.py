import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serve.report.percentiles import Spread, percentile


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_the_nearest_rank_is_that_of_numpy(values: list[float], share: float) -> None:
    expected = np.percentile(values, 100 * share, method="inverted_cdf")
    assert percentile(sorted(values), share) == expected


def test_of_a_thousand_the_slowest_is_not_yet_p999() -> None:
    assert percentile(range(1, 1001), 0.999) == 999
    assert percentile(range(1, 1000), 0.999) == 999
    assert percentile(range(1, 101), 0.5) == 50


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], 0.0)


def test_a_spread_tells_the_middle_and_the_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([3.0, 1.0, 2.0]).text(1) == "2.0 (1.0-3.0)"
    assert Spread.of([2.04, 2.01]).text(1) == "2.0"
