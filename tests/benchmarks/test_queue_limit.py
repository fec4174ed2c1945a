"""The simulated queue: what theory says of it where theory can."""

import pytest

from benchmarks.serving.queue_limit import simulate
from service.scheduling.throughput import Throughput


def test_nobody_waits_where_few_come() -> None:
    speed = Throughput(0.0, 1e-3, 64, 2)
    taken = simulate([8], 0.001, speed, 2, lambda tokens: 1e-3 * tokens, 200)
    assert len(taken) == 200 and max(taken) == pytest.approx(8e-3)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_single_texts_wait_as_long_as_theory_says(share: float) -> None:
    """One server of fixed time S: the mean wait is share / (1 - share) * S / 2 (Pollaczek and Khinchine)."""
    speed, service_s = Throughput(0.0, 1e-3, 8, 1), 8e-3
    taken = simulate([8], share, speed, 1, lambda tokens: 1e-3 * tokens, 20_000)
    mean = sum(taken) / len(taken)
    assert mean == pytest.approx(service_s * (1 + share / (1 - share) / 2), rel=0.08)


def test_more_slots_wait_less_at_the_same_share() -> None:
    def late(slots: int) -> float:
        taken = simulate(
            [8, 64], 0.8, Throughput(1e-3, 1e-4, 64, slots), slots, lambda t: 1e-3 + 1e-4 * t, 8_000
        )
        return sorted(taken)[int(0.99 * len(taken))]

    assert late(4) < late(2) < late(1)
