"""The simulated replica, beside queueing theory and by what any queue must do."""

import pytest

from service.planning.simulation import Replica, simulate
from service.scheduling.fair_queue import Throughput

TEXT = 64


def replica(
    *,
    slots: int = 1,
    http_s: float = 0.0,
    budget: int = TEXT,
    sizes: tuple[tuple[int, ...], ...] = ((TEXT,),),
) -> Replica:
    """Batches of 1 ms and 1 ms for each TEXT tokens; `engine_s` is that of full ones."""
    model = Throughput(0.001, 0.001 / TEXT, budget, slots)
    tokens = sum(map(sum, sizes)) / len(sizes)
    return Replica(sizes, http_s, tokens * slots / model.tokens_per_s, model, budget)


@pytest.mark.parametrize("busy", [0.3, 0.5, 0.8])
def test_without_batching_and_http_it_is_the_queue_of_the_textbook(busy: float) -> None:
    # M/D/1: arrivals at random, 2 ms each, one after the other. Pollaczek and Khinchine give what waits on average.
    found = simulate(replica(), busy / 0.002)
    assert found.busy == pytest.approx(busy, rel=0.05)
    assert found.queue_tokens / TEXT == pytest.approx(busy**2 / (2 * (1 - busy)), rel=0.15)
    assert found.p50_ms >= 2.0


def test_an_idle_replica_takes_as_long_as_a_request_does() -> None:
    found = simulate(replica(slots=2, http_s=0.003), 0.5)
    assert found.p50_ms == pytest.approx(5.0) and found.queue_tokens < 0.1


def test_with_more_load_the_same_replica_is_slower() -> None:
    one = replica(slots=2, http_s=0.0005, budget=4 * TEXT)
    loads = [simulate(one, rate) for rate in (100, 400, 800, 1100)]
    times, waiting = [load.p99_ms for load in loads], [load.queue_tokens for load in loads]
    assert times == sorted(times) and times[-1] > 2 * times[0]
    assert waiting == sorted(waiting)


def test_batches_carry_a_load_that_single_texts_could_not() -> None:
    rate = 700.0  # 500 a second are all that one slot does in batches of one text
    assert simulate(replica(budget=4 * TEXT), rate).p99_ms < 50 < simulate(replica(), rate).p99_ms


def test_http_and_batches_share_the_cores() -> None:
    # One core: 1 ms of HTTP and 2 ms of engine leave room for 333 requests a second.
    one = replica(http_s=0.001)
    assert simulate(one, 300.0).p99_ms < 100 < simulate(one, 400.0).p99_ms


def test_a_request_of_several_texts_is_answered_with_its_last() -> None:
    assert simulate(replica(sizes=((TEXT, TEXT, TEXT),)), 1.0).p50_ms == pytest.approx(6.0)
    assert simulate(replica(slots=3, sizes=((TEXT, TEXT, TEXT),)), 1.0).p50_ms == pytest.approx(2.0)


def test_the_same_load_has_the_same_prediction() -> None:
    assert simulate(replica(), 250.0) == simulate(replica(), 250.0)
