"""Timing of batches, and of one text on one slot and on several."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from bert.tokenizer import Encoding
from service.engine.cost_curve import (
    RETRY_EVERY_S,
    RETRY_FOR_S,
    CostPoint,
    find_multi_slot_tokens,
    knee,
    time_batches,
    time_wide_text,
)
from service.engine.models import Outputs


@dataclass
class TimedEngine:
    """Advances its clock by `run_s` per run and `token_s` per token."""

    clock: list[float]
    run_s: float
    token_s: float

    def read_clock(self) -> float:
        return self.clock[0]

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.clock[0] += self.run_s + self.token_s * sum(len(encoding) for encoding in encodings)
        return Outputs([np.zeros((1, 1), np.float32) for _ in encodings], 0.0)


def test_the_curve_is_measured_up_to_the_limit() -> None:
    engine = TimedEngine([0.0], 1e-3, 1e-4)
    curve = time_batches(engine, 128, budget_s=10, clock=engine.read_clock, wall=engine.read_clock)
    assert [point.tokens for point in curve] == [16, 32, 64, 128]
    assert curve[2].seconds == pytest.approx(0.0074)
    assert knee(curve) == 64


def test_the_curve_stops_when_its_time_is_used() -> None:
    engine = TimedEngine([0.0], 1e-3, 1e-4)
    curve = time_batches(engine, 4096, budget_s=0.04, clock=engine.read_clock, wall=engine.read_clock)
    assert [point.tokens for point in curve] == [16, 32, 64]
    assert engine.clock[0] < 0.04


@pytest.mark.parametrize(
    ("multi_slot_run_s", "max_tokens", "expected"),
    [(0.0, 512, 16), (3e-3, 512, 128), (3e-3, 64, None), (1.0, 512, None)],
    ids=["always", "where synchronising pays", "not for texts so short", "never"],
)
def test_several_slots_are_used_where_they_are_clearly_faster(
    multi_slot_run_s: float, max_tokens: int, expected: int | None
) -> None:
    clock = [0.0]
    one, several = TimedEngine(clock, 0.0, 1e-4), TimedEngine(clock, multi_slot_run_s, 5e-5)
    assert (
        find_multi_slot_tokens(one, several, max_tokens, 2, clock=lambda: clock[0], sleep=lambda _: None)
        == expected
    )


@pytest.mark.parametrize(
    ("runs", "expected", "waits"),
    [
        ([(3.0, 2.0, 1.0)], 16, 0),  # worth it although it had half of its cores
        (
            [(3.0, 3.5, 1.1), (3.0, 3.4, 1.2), (3.0, 2.3, 2.0)],
            16,
            2,
        ),
        (
            [(3.0, 2.9, 2.0), (5.0, 3.9, 2.0)],
            32,
            0,
        ),  # undisturbed, and not worth it
        ([(0.2, 0.3, 0.5), (0.3, 0.4, 0.5)], None, 0),  # too short to say
        ([(3.0, 3.5, 1.0)] * 30, None, round(RETRY_FOR_S / RETRY_EVERY_S)),
    ],
)
def test_a_timing_that_lacked_cores_is_repeated(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[float, float, float]], expected: int | None, waits: int
) -> None:
    """When the service starts its processes compete, and a wrong result would be cached."""
    given, waited = ((one / 1000, several / 1000, cores) for one, several, cores in runs), list[float]()
    monkeypatch.setattr("service.engine.cost_curve.time_text", lambda *_: next(given))
    engine = TimedEngine([0.0], 1.0, 1.0)
    assert find_multi_slot_tokens(engine, engine, 32, 2, sleep=waited.append) == expected
    assert len(waited) == waits


@pytest.mark.parametrize(
    ("max_tokens", "token_s", "tokens"),
    [
        (512, 1e-4, 512),
        (512, 9e-4, 256),
        (300, 1e-4, 256),
        (512, 1.9e-3, 128),
        (512, 0.1, None),
        (64, 1e-4, None),
    ],
)
def test_the_longest_text_that_the_budget_allows_is_timed(
    max_tokens: int, token_s: float, tokens: int | None
) -> None:
    engine = TimedEngine([0.0], 0.0, token_s)
    curve = [CostPoint(64, 64 * token_s)]
    wide = time_wide_text(engine, curve, max_tokens, budget_s=0.5, clock=engine.read_clock)
    assert (wide and wide.tokens) == tokens
    assert wide is None or wide.seconds == pytest.approx(token_s * wide.tokens)
