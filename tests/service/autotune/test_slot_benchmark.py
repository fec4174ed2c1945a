"""Slots and threads: which divisions of the cores are tried, and what is said of them."""

import time
from collections.abc import Sequence

import pytest

from bert.tokenizer import Encoding
from service.autotune.cost_curve import Plan, sample_texts
from service.autotune.slot_benchmark import divisions, lines, tokens_per_s
from service.engine.onnx_engine import Outputs


def test_every_division_uses_all_cores_once() -> None:
    assert divisions(1) == [Plan(1, 1)]
    assert divisions(6) == [Plan(6, 1), Plan(3, 2), Plan(2, 3), Plan(1, 6)]


class SleepingEngine:
    """Takes as long for any batch, on as many threads as ask."""

    def run(self, _: Sequence[Encoding]) -> Outputs:
        time.sleep(0.01)
        return Outputs([], 0.0)


class FailingEngine(SleepingEngine):
    """Runs once."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, texts: Sequence[Encoding]) -> Outputs:
        self.runs += 1
        if self.runs > 1:
            raise RuntimeError
        return super().run(texts)


def test_all_slots_count() -> None:
    texts = sample_texts(64)
    assert (
        2 < tokens_per_s(SleepingEngine(), 4, texts, 0.2) / tokens_per_s(SleepingEngine(), 1, texts, 0.2) < 6
    )


def test_an_engine_that_fails_has_no_throughput() -> None:
    assert tokens_per_s(FailingEngine(), 2, sample_texts(64), 0.05) == 0.0


@pytest.mark.parametrize(
    ("rates", "advice"),
    [
        ((100.0, 105.0), []),
        ((100.0, 150.0), ["  faster here: --engine-slots 1 --engine-threads-per-slot 2 (1.50 times)"]),
    ],
)
def test_only_what_is_clearly_faster_is_advised(rates: Sequence[float], advice: list[str]) -> None:
    first, *more = lines(Plan(2, 1), divisions(2), rates, 128)
    assert first.endswith(f"batches of 128 tokens, tokens/s: 2 x 1 100, 1 x 2 {rates[1]:.0f}")
    assert more == advice
