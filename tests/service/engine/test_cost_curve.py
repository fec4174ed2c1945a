"""The knee of a cost curve, and the cost model that is fitted to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.packing import DEFAULT_COST, CostModel
from service.engine.cost_curve import (
    KNEE,
    MAX_ATTENTION_WIDTH,
    MAX_RUN_TOKENS,
    MIN_BUDGET,
    CostPoint,
    fit_cost,
    fitted,
    knee,
)


def test_the_knee_is_the_smallest_batch_near_the_best_throughput() -> None:
    curve = [CostPoint(64, 0.0120), CostPoint(128, 0.0175), CostPoint(256, 0.032), CostPoint(512, 0.063)]
    assert knee(curve) == 256


def test_a_disturbed_measurement_does_not_make_tiny_batches() -> None:
    assert knee([CostPoint(16, 0.001), CostPoint(32, 0.1)]) == MIN_BUDGET


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8))
def test_the_knee_is_near_the_best_and_nothing_smaller_is(seconds: list[float]) -> None:
    curve = [CostPoint(MIN_BUDGET << i, s) for i, s in enumerate(seconds)]
    best = max(point.tokens_per_s for point in curve)
    chosen = next(point for point in curve if point.tokens == knee(curve))
    assert chosen.tokens_per_s >= KNEE * best
    assert all(p.tokens_per_s < KNEE * best for p in curve if p.tokens < chosen.tokens)


def timed(tokens: int, width: int, run_s: float, token_s: float, attention_width: float) -> CostPoint:
    return CostPoint(tokens, run_s + token_s * tokens * (1 + width / attention_width))


@given(st.floats(100, 5000), st.floats(0, 50), st.floats(1e-6, 1e-2))
def test_the_cost_model_is_found_from_exact_times(
    attention_width: float, run_tokens: float, token_s: float
) -> None:
    model = run_tokens * token_s, token_s, attention_width
    curve = [timed(16 << i, min(16 << i, 32), *model) for i in range(6)]
    cost = fit_cost(curve, 32, timed(512, 512, *model))
    assert cost is not None
    assert cost.attention_width == pytest.approx(attention_width, rel=1e-3)
    assert cost.run_tokens == pytest.approx(run_tokens, rel=1e-3, abs=1e-3)


def test_a_long_text_that_was_no_slower_says_nothing() -> None:
    curve = [CostPoint(16, 0.001), CostPoint(512, 0.032)]
    assert fit_cost(curve, 32, CostPoint(512, 0.030)) is None


def test_a_fitted_cost_model_stays_within_bounds() -> None:
    assert fitted(DEFAULT_COST, 1e9, 1e9).attention_width == MAX_ATTENTION_WIDTH
    assert fitted(DEFAULT_COST, 1e9, 1e9).run_tokens == MAX_RUN_TOKENS
    with pytest.raises(ValueError, match="NaN"):
        fitted(DEFAULT_COST, float("nan"), 1.0)


def test_layers_with_a_window_are_not_taken_for_cheap_attention() -> None:
    guess = CostModel(windowed=0.5, window_tokens=128.0)
    # 512 tokens: half of the layers see them, half as much as in a row of 128.
    curve = [timed(16 << i, min(16 << i, 32), 0.01, 0.001, 1000.0) for i in range(6)]
    cost = fit_cost(curve, 32, timed(512, 320, 0.01, 0.001, 1000.0), guess)
    assert cost is not None
    assert cost.attention_width == pytest.approx(1000.0, rel=1e-3)
    assert (cost.windowed, cost.window_tokens) == (0.5, 128.0)
