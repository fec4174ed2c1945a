import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.packing import CostModel
from service.engine.cost_curve import CostPoint
from service.workers.scheduled_models import fit_throughput

CURVE = [CostPoint(16, 0.003), CostPoint(32, 0.005), CostPoint(64, 0.009)]  # 1 ms and 0.125 ms a token


def test_the_first_estimate_is_the_cost_curve() -> None:
    speed = fit_throughput(CURVE, budget=64, slots=2)
    assert speed.batch_s == pytest.approx(0.009)
    assert speed.tokens_per_s == pytest.approx(2 * 64 / 0.009)


def test_a_curve_of_one_point_and_one_that_was_disturbed_give_an_estimate_too() -> None:
    assert fit_throughput(CURVE[:1], budget=16, slots=1).batch_s == pytest.approx(0.003)
    assert fit_throughput(
        [CostPoint(16, 0.5), CostPoint(32, 0.01)], budget=32, slots=1
    ).batch_s == pytest.approx(0.01)


def test_what_the_curve_took_by_the_wall_counts_at_once() -> None:
    curve = [CostPoint(point.tokens, point.seconds, 10 * point.seconds + 0.3) for point in CURVE]
    assert fit_throughput(curve, 64, 1).tokens_per_s < 0.5 * fit_throughput(CURVE, 64, 1).tokens_per_s


def test_single_short_texts_do_not_make_the_service_think_itself_slow() -> None:
    speed = fit_throughput(CURVE, 64, 1)
    for _ in range(1000):
        speed.learn(6, 0.001 + 6 * 0.000125)
    assert speed.tokens_per_s == pytest.approx(64 / 0.009)


def test_a_long_text_counts_as_many_short_ones_that_take_as_long() -> None:
    cost = CostModel(1000.0, windowed=0.5, window_tokens=200.0)
    speed = fit_throughput(CURVE, 64, 1, cost)
    assert speed.work(20) == 20 and speed.work(32) == 32
    # Of 8,000 tokens half the layers see all, and half what a row of 200 costs.
    assert speed.work(8000) == pytest.approx(8000 * (1 + 4.1) / (1 + 0.032))
    assert fit_throughput(CURVE, 64, 1).work(8000) == 8000
    assert speed.seconds(speed.work(8000)) == pytest.approx(0.001 + speed.work(8000) * 0.000125)


@given(st.floats(0.02, 50))
def test_a_wrong_estimate_is_mended_in_some_seconds_of_work(slower: float) -> None:
    speed, worked_s = fit_throughput(CURVE, 64, 1), 0.0
    while worked_s < 20:
        speed.learn(64, slower * 0.009)
        worked_s += slower * 0.009
    assert speed.batch_s == pytest.approx(slower * 0.009, rel=0.1)


def test_one_batch_that_was_held_up_changes_little() -> None:
    speed = fit_throughput(CURVE, 64, 1)
    for _ in range(1000):
        speed.learn(64, 0.009)
    speed.learn(64, 1.0)
    assert speed.batch_s < 1.3 * 0.009


def test_a_process_that_was_stopped_for_a_minute_does_not_think_itself_slow() -> None:
    speed = fit_throughput(CURVE, 64, 1)
    speed.learn(6, 60.0)
    assert speed.batch_s < 1.2 * 0.009
