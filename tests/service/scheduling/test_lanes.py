"""Lanes of the fair queue: one for each API key."""

import random

import pytest

from bert.errors import QueueFullError, TooLateError
from service.scheduling.fair_queue import (
    MANY_QUEUES,
    NO_LANE,
    FairQueue,
    Job,
    Lane,
    Throughput,
    finish_s,
    own_room,
)

A, B = Lane("a"), Lane("b")


def queue_of(max_tokens: int = 10**6, budget: int = 100) -> FairQueue:
    """A queue of two models; a token takes a millisecond on one slot."""
    throughput = {name: Throughput(0.0, 0.001, budget) for name in "mn"}
    return FairQueue(max_tokens, dict.fromkeys("mn", budget), throughput)


def served(queue: FairQueue, tokens: int) -> dict[str, int]:
    """Form batches of so many tokens in all; return the tokens of each lane."""
    found: dict[str, int] = {}
    while sum(found.values()) < tokens and (batch := queue.next_batch(0.0)) is not None:
        for item in batch.items:
            found[item.job.lane.name] = found.get(item.job.lane.name, 0) + item.tokens
    return found


def test_a_single_text_is_in_the_next_batch_however_much_another_key_sent() -> None:
    queue = queue_of()
    for _ in range(5000):
        queue.admit(Job("m", [10], lane=A))
    queue.next_batch(0.0)
    job = Job("m", [10], lane=B)
    queue.admit(job)
    batch = queue.next_batch(0.0)
    assert batch is not None and any(item.job is job for item in batch.items)


@pytest.mark.parametrize("share", [0.25, 1, 3])
def test_keys_are_served_by_their_shares(share: float) -> None:
    queue, heavy = queue_of(), Lane("heavy", share)
    for _ in range(4000):
        queue.admit(Job("m", [10], lane=A))
        queue.admit(Job("m", [10], lane=heavy))
    found = served(queue, 20_000)
    assert found["heavy"] / found["a"] == pytest.approx(share, rel=0.02)


def test_a_key_gains_nothing_by_many_models_and_sizes() -> None:
    queue = queue_of()
    for _ in range(2000):
        for model in "mn":
            queue.admit(Job(model, [10], lane=A))
            queue.admit(Job(model, [90] * 6, lane=A))
        queue.admit(Job("m", [10], lane=B))
    found = served(queue, 20_000)
    assert found["b"] / found["a"] == pytest.approx(1, rel=0.05)


def test_a_key_that_comes_back_has_saved_up_no_turns() -> None:
    queue = queue_of()
    queue.admit(Job("m", [10], lane=B))
    served(queue, 10)
    for _ in range(3000):
        queue.admit(Job("m", [10], lane=A))
    served(queue, 20_000)
    for _ in range(1000):
        queue.admit(Job("m", [10], lane=B))
    found = served(queue, 4000)
    assert found["b"] / found["a"] == pytest.approx(1, rel=0.1)


def test_a_full_queue_still_takes_each_keys_part() -> None:
    queue = queue_of(max_tokens=1000)
    for _ in range(100):
        queue.try_admit(Job("m", [10], lane=A))
    with pytest.raises(QueueFullError):
        queue.try_admit(Job("m", [10], lane=A))
    for _ in range(50):
        queue.try_admit(Job("m", [10], lane=B))
    with pytest.raises(QueueFullError):
        queue.try_admit(Job("m", [10], lane=B))
    with pytest.raises(QueueFullError):
        queue.try_admit(Job("m", [10]), 0.0)
        for _ in range(100):
            queue.try_admit(Job("m", [10]), 0.0)
    assert own_room(900, Lane("c", 2), [A]) == 600


def test_a_text_is_admitted_by_what_its_own_lane_has_before_it() -> None:
    queue = queue_of()
    for _ in range(100):
        queue.try_admit(Job("m", [90], 20.0, lane=A), busy_s=0.1)
    with pytest.raises(TooLateError):
        queue.try_admit(Job("m", [90], 2.0, lane=A), busy_s=0.1)
    queue.try_admit(Job("m", [90], 2.0, lane=B), busy_s=0.1)


def test_the_estimate_counts_other_lanes_by_their_weight() -> None:
    assert finish_s(1.0, [(9.0, 0.0)], [(9.0, 0.0, 1.0)]) == 4.0
    assert finish_s(1.0, [], [(9.0, 0.0, 0.5), (0.1, 0.0, 3.0)]) == 1.6
    assert finish_s(1.0, [(9.0, 0.0)]) == 2.0


def test_lanes_in_which_nothing_waits_are_forgotten() -> None:
    queue = queue_of()
    for number in range(3 * MANY_QUEUES):
        queue.admit(Job("m", [10], lane=Lane(str(number))))
        served(queue, 10)
    assert len(queue._queues) <= MANY_QUEUES and len(queue._lanes) <= MANY_QUEUES


def test_sums_are_right_whatever_comes_and_goes() -> None:
    queue, draw, jobs = queue_of(), random.Random(7), list[Job]()
    for _ in range(3000):
        lane = draw.choice([NO_LANE, A, B, Lane(str(draw.randrange(400)), draw.uniform(0.1, 9))])
        jobs.append(
            Job(draw.choice("mn"), [draw.randrange(1, 90) for _ in range(draw.randrange(1, 4))], lane=lane)
        )
        queue.admit(jobs[-1])
        if draw.random() < 0.3:
            queue.cancel(draw.choice(jobs))
        if draw.random() < 0.7 and (batch := queue.next_batch(0.0)) is not None and draw.random() < 0.2:
            queue.retry_separately(batch)
        waiting = [turns.tokens for turns in queue._lanes.values()]
        assert sum(waiting) == queue.tokens and min(waiting) >= 0
    while queue.next_batch(0.0) is not None:
        pass
    assert queue.tokens == queue.texts == 0
