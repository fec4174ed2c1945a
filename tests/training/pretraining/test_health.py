"""Synthetic curves: healthy ones, shaped as real runs are, give no warning; each fault is named with its cause."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from bert.errors import TrainingError
from training.pretraining.health import HealthMonitor

V = 30522
UNIFORM, UNIGRAM = math.log(V), 7.1
Curve = Callable[[int], float]


def told(
    monitor: HealthMonitor,
    loss: Curve,
    norm: Curve = lambda step: 1.0,
    steps: int = 10_000,
    noise: float = 0.1,
) -> list[tuple[int, str]]:
    """Run a curve through the monitor; returns (step, message) of each warning."""
    rng = np.random.default_rng(0)
    messages = []
    for step in range(1, steps + 1):
        shaken = loss(step) * (1 + noise * 0.3 * rng.standard_normal())
        message = monitor.check(step, shaken, norm(step) * math.exp(rng.normal(0, 0.3)), step / steps)
        if message:
            messages += [(step, line) for line in message.splitlines()]
    return messages


def healthy(step: int, plateau_ends: int = 3000) -> float:
    """Word frequencies first, a rest there, then the breakthrough and a slow fall: the course of BERT's MLM loss."""
    frequencies = UNIGRAM - 0.5 + (UNIFORM - UNIGRAM + 0.5) * math.exp(-step / 150)
    after = max(0, step - plateau_ends)
    return 2.2 + (frequencies - 2.2) * (0.5 * math.exp(-after / 200) + 0.5 * math.exp(-after / 4000))


def monitor(**changes: float) -> HealthMonitor:
    values = {"warmup_ratio": 0.1, "unigram_entropy": UNIGRAM, **changes}
    return HealthMonitor(V, **values)  # type: ignore[arg-type]


def falling_norm(step: int) -> float:
    """Large at first, small on the plateau, ten times that when attention forms, then slowly down."""
    return 8 * math.exp(-step / 50) + 0.2 + 2 / (1 + math.exp(-(step - 3000) / 50))


@pytest.mark.parametrize(("steps", "noise"), [(1000, 0.02), (1000, 0.4), (10_000, 0.1), (30_000, 0.4)])
def test_a_healthy_run_is_left_alone(steps: int, noise: float) -> None:
    scale = steps / 10_000 if steps < 10_000 else 1.0
    assert (
        told(
            monitor(total_steps=steps), lambda s: healthy(round(s / scale)), falling_norm, steps, noise=noise
        )
        == []
    )


def test_a_plateau_near_log_vocabulary_through_a_long_warm_up_is_healthy() -> None:
    def slow_start(step: int) -> float:
        return UNIFORM if step < 9000 else healthy(step - 9000, plateau_ends=2000)

    assert told(monitor(warmup_ratio=0.3), slow_start, falling_norm, steps=30_000) == []


@pytest.mark.parametrize(("height", "length"), [(5.0, 5), (3.0, 30), (1.0, 100)])
def test_a_spike_that_recovers_is_healthy(height: float, length: int) -> None:
    def spiky(step: int) -> float:
        return healthy(step) + sum(
            height * math.exp(-(step - at) / length) for at in (5000, 8000) if step >= at
        )

    def norm(step: int) -> float:
        return falling_norm(step) * (100 if 5000 <= step < 5010 else 1)

    assert told(monitor(), spiky, norm) == []


def test_a_run_near_its_floor_may_have_norms_that_rise_from_nothing() -> None:
    norms = told(monitor(), lambda s: 0.01 + 4 * math.exp(-s / 100), lambda s: 1e-4 if s < 5000 else 1e-1)
    assert norms == []


def test_a_phase_of_longer_texts_may_start_higher() -> None:
    quiet = monitor()
    assert told(quiet, healthy, falling_norm, 9000) == []
    quiet.restart()
    rng = np.random.default_rng(0)
    assert [quiet.check(s, 5 + rng.normal(0, 0.1), 1.0, 0.9) for s in range(9001, 10_001)] == [None] * 1000


def test_a_loss_that_is_not_a_number_ends_the_run_with_its_cause() -> None:
    with pytest.raises(TrainingError, match=r"step 1: the loss is nan.* from the first step on"):
        monitor().check(1, math.nan, 1.0, 0.0)
    fine = monitor()
    told(fine, healthy, steps=500)
    with pytest.raises(TrainingError, match=r"the gradient norm inf\. Until then the run looked well"):
        fine.check(501, 7.0, math.inf, 0.1)
    ill = monitor()
    told(ill, lambda s: 3.0 if s < 500 else 9.0, steps=800)
    with pytest.raises(TrainingError, match="had been diverging: lower learning_rate"):
        ill.check(801, math.nan, math.nan, 0.1)


def test_divergence_is_told_with_the_step_to_go_back_to() -> None:
    def collapse(step: int) -> float:
        return healthy(step) if step < 7000 else min(7.1, healthy(7000) + (step - 7000) / 100)

    (step, message), *others = told(monitor(), collapse, falling_norm)
    assert others == []
    assert 7200 < step < 7600
    assert message.startswith(f"step {step:,}: the loss diverges: ")
    assert "it was 3." in message and "learning rate is too high" in message
    lowest = int(message.split("at step ")[1].split(".")[0].replace(",", ""))
    assert 6500 < lowest < 7100


def test_a_short_run_hears_of_divergence_sooner() -> None:
    def rising(step: int) -> float:
        return 9 - step / 50 if step < 250 else 4 + (step - 250) / 20

    (step, message), *_ = told(monitor(total_steps=500), rising, steps=500)
    assert step < 350
    assert "diverges" in message


def test_a_loss_above_a_blind_guess_is_told() -> None:
    (step, message), *_ = told(monitor(), lambda s: 14.0)
    assert step < 400
    assert "worse than a blind guess (log of the vocabulary: 10.33)" in message
    assert "another vocabulary" in message


@pytest.mark.parametrize(
    ("norm", "cause"),
    [(1.0, "far too low"), (1e-5, "frozen"), (50.0, "too high")],
)
def test_a_loss_stuck_near_log_vocabulary_is_told_soon_after_the_warm_up(norm: float, cause: str) -> None:
    messages = told(monitor(), lambda s: UNIFORM + 0.02, lambda s: norm)
    (step, message) = next(m for m in messages if "log(vocabulary) = 10.33" in m[1])
    assert 1500 <= step <= 1600  # a tenth of 10,000 steps is warm-up, and 500 more or 5% are its due
    assert cause in message


def test_without_the_entropy_of_words_log_vocabulary_is_watched_still() -> None:
    (_, message), *_ = told(HealthMonitor(V, warmup_ratio=0.1), lambda s: 9.9)
    assert "nothing is learned" in message
    assert told(HealthMonitor(V, warmup_ratio=0.1), lambda s: 7.0) == []


def test_a_loss_stuck_at_word_frequencies_is_told_and_told_again_much_later() -> None:
    messages = told(monitor(repeat_steps=2000), lambda s: healthy(s, plateau_ends=100_000))
    assert [step // 1000 for step, _ in messages] == [4, 6, 8]
    assert all("does not read its context" in message for _, message in messages)


def test_a_trial_of_a_few_hundred_steps_is_not_told_that_it_has_learned_little() -> None:
    short = monitor(total_steps=300)
    assert told(short, lambda s: max(7.0, 10.3 - s / 20), steps=300) == []


def test_a_loss_that_tells_no_words_is_not_compared_with_a_guess_of_words() -> None:
    def high(step: int) -> float:
        return 40.0 - step / 1000

    assert any(
        "blind guess" in line for _, line in told(HealthMonitor(V, total_steps=2000), high, steps=2000)
    )
    assert told(HealthMonitor(math.inf, total_steps=2000), high, steps=2000, noise=0.0) == []
