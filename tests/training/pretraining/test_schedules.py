"""Learning rates over a run."""

from itertools import pairwise

import pytest

from training.pretraining.plan import ramp, rate_share
from training.pretraining.settings import Schedule


def googles_rate(step: int, total: int, warmup: int) -> float:
    """`create_optimizer` of google-research/bert, as a share of the peak."""
    decayed = 1.0 - min(step, total) / total  # tf.train.polynomial_decay, power 1, end 0
    return step / warmup if step < warmup else decayed


def test_google_decays_from_the_first_step() -> None:
    shares = [rate_share("google", step / 1000, warmup=0.1) for step in range(1000)]
    assert shares == pytest.approx([googles_rate(step, 1000, 100) for step in range(1000)])
    assert [shares[step] for step in (0, 50, 99, 100, 550)] == pytest.approx([0.0, 0.5, 0.99, 0.9, 0.45])
    assert rate_share("google", 1.2, warmup=0.1) == 0.0
    assert rate_share("google", 0.5, warmup=0.1, final=0.2) == pytest.approx(0.6)


@pytest.mark.parametrize("schedule", ["linear", "one_cycle", "warmup_stable_decay", "constant"])
def test_each_schedule_rises_from_zero_to_the_peak(schedule: Schedule) -> None:
    shares = [rate_share(schedule, done, warmup=0.1, decay=0.2) for done in (0.0, 0.05, 0.1)]
    assert shares == pytest.approx([0.0, 0.5, 1.0])


def test_linear_falls_straight_to_its_end() -> None:
    shares = [rate_share("linear", done, warmup=0.2, final=0.1) for done in (0.2, 0.6, 1.0)]
    assert shares == pytest.approx([1.0, 0.55, 0.1])


def test_one_cycle_falls_by_half_a_cosine() -> None:
    shares = [rate_share("one_cycle", done, warmup=0.0) for done in (0.0, 0.25, 0.5, 1.0)]
    assert shares == pytest.approx([1.0, 0.5 + 0.5**1.5, 0.5, 0.0])


def test_stable_holds_the_peak_until_the_decay() -> None:
    shares = [
        rate_share("warmup_stable_decay", done, warmup=0.1, decay=0.2) for done in (0.1, 0.5, 0.8, 0.9, 1.0)
    ]
    assert shares == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.0])


def test_a_decay_by_the_square_root_falls_fast_at_first() -> None:
    """Hägele et al. 2024, equation 2: 1 - sqrt of the share of the decay that is over."""
    dones = (0.5, 0.8, 0.85, 0.9, 1.0, 1.2)
    shares = [rate_share("warmup_stable_decay", d, 0.1, decay=0.2, final=0.1, shape="sqrt") for d in dones]
    assert shares == pytest.approx([1.0, 1.0, 0.55, 1 - 0.9 * 0.5**0.5, 0.1, 0.1])


def test_a_run_past_its_end_keeps_the_last_rate() -> None:
    assert rate_share("linear", 1.2, warmup=0.1) == 0.0
    assert rate_share("warmup_stable_decay", 1.2, warmup=0.1, decay=0.1) == 0.0


def test_the_batch_grows_over_the_ramp_only() -> None:
    assert [ramp(done, 32, 256, 0.5) for done in (0.0, 0.25, 0.5, 1.0)] == [32, 144, 256, 256]
    assert ramp(0.0, 32, 256, 0.0) == 256


def test_the_batch_grows_in_a_few_stairs() -> None:
    """Workers that read ahead start again at each new size."""
    sizes = [ramp(step / 10_000, 32, 4096, 0.5) for step in range(10_000)]
    assert sizes == sorted(sizes) and (sizes[0], sizes[-1]) == (32, 4096)
    assert 10 < len(set(sizes)) <= 17
    assert max(b - a for a, b in pairwise(sizes)) <= 254  # the stairs are of one height
