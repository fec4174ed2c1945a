"""The knee of a cost curve."""

from hypothesis import given
from hypothesis import strategies as st

from service.autotune.cost_curve import KNEE, MIN_BUDGET, CostPoint, knee


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
