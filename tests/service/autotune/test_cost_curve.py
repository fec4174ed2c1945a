from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import ConfigError
from bert.tokenizer import Encoding
from service.autotune.cost_curve import KNEE, MIN_BUDGET, CostPoint, knee
from service.autotune.engine_timing import time_batches
from service.engine.engine_protocol import Outputs
from service.engine.sample_texts import sample_texts
from service.engine.slot_layout import SlotLayout, lay_out_slots


@pytest.mark.parametrize(
    ("cores", "slots", "threads", "expected"),
    [
        (1, None, None, SlotLayout(1, 1)),
        (2, None, None, SlotLayout(2, 1)),
        (8, None, None, SlotLayout(8, 1)),
        (8, 2, None, SlotLayout(2, 4)),
        (8, None, 4, SlotLayout(2, 4)),
        (8, 3, None, SlotLayout(3, 2)),
        (2, 1, 2, SlotLayout(1, 2)),
    ],
)
def test_cores_are_divided(cores: int, slots: int | None, threads: int | None, expected: SlotLayout) -> None:
    assert lay_out_slots(cores, slots, threads) == expected


def test_a_gpu_computes_one_batch_while_the_next_is_prepared() -> None:
    assert lay_out_slots(16, on_gpu=True) == lay_out_slots(1, on_gpu=True) == SlotLayout(2, 1)
    assert lay_out_slots(16, 3, on_gpu=True) == SlotLayout(3, 1)


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine_slots \(2\) x engine_threads_per_slot \(2\).* 2 cores"):
        lay_out_slots(2, 2, 2)


def test_the_knee_is_where_more_stops_being_faster() -> None:
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


class TimedEngine:
    """Takes 1 ms and 0.1 ms a token on the clock that it moves."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.now += 1e-3 + 1e-4 * sum(len(encoding) for encoding in encodings)
        return Outputs([np.zeros((1, 1), np.float32) for _ in encodings], 0.0)


def test_the_curve_is_measured_up_to_the_limit() -> None:
    engine = TimedEngine()
    curve = time_batches(engine, 128, budget_s=10, clock=engine.clock, wall=engine.clock)
    assert [point.tokens for point in curve] == [16, 32, 64, 128]
    assert curve[2].seconds == pytest.approx(0.0074)
    assert knee(curve) == 64


def test_the_curve_stops_when_its_time_is_used() -> None:
    engine = TimedEngine()
    curve = time_batches(engine, 4096, budget_s=0.04, clock=engine.clock, wall=engine.clock)
    assert [point.tokens for point in curve] == [16, 32, 64]
    assert engine.now < 0.04


@given(st.integers(3, 600))
def test_sample_texts_have_the_tokens_asked_for(tokens: int) -> None:
    assert sum(len(text) for text in sample_texts(tokens)) == tokens
    short = [len(text) for text in sample_texts(tokens, 16)]
    assert sum(short) == tokens and max(short) <= 16
