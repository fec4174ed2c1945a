"""The queue under more work than the engine does: simulated, with a fake engine and a fake clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import TooLateError
from bert.packing import CostModel
from service.scheduling.fair_queue import FairQueue, Job, Throughput, finish_s
from tests.support.overload import (
    BUDGET,
    TOKENS_PER_S,
    Simulation,
    Sizes,
    documents,
    lists,
    mixed,
    sentences,
)

CASES = [
    (sizes, load, deadline_s) for sizes in (lists, mixed) for load in (1, 2, 3) for deadline_s in (30, 6)
]


@pytest.mark.parametrize(
    ("sizes", "load", "deadline_s", "slots"), [*((*c, 1) for c in CASES), (mixed, 3, 6, 4)]
)
def test_the_engine_works_for_answers_however_much_is_asked(
    sizes: Sizes, load: float, deadline_s: float, slots: int
) -> None:
    simulation = Simulation(sizes, load, deadline_s, slots)
    simulation.run()
    worked = simulation.ran_tokens / (TOKENS_PER_S * simulation.now)
    assert simulation.goodput() >= (0.8 if load > 1 else 0.98 * worked)
    # All others were refused in the moment when they came: none waited to be told so.
    assert len(simulation.dropped) <= 0.02 * len(simulation.offered)
    assert len(simulation.done_at) + len(simulation.dropped) + simulation.refused == len(simulation.offered)
    assert (simulation.queue.tokens, simulation.queue.texts) == (0, 0)


@pytest.mark.parametrize("guess", [10.0, 0.1])
def test_a_wrong_first_estimate_of_the_speed_mends_itself(guess: float) -> None:
    simulation = Simulation(mixed, 3, 30, guess=guess)
    simulation.run()
    assert simulation.speed.tokens_per_s == pytest.approx(TOKENS_PER_S, rel=0.05)
    assert simulation.goodput() >= 0.8


def test_seventeen_lists_at_once_of_which_half_can_be_done() -> None:
    simulation = Simulation(lists, 1, 17 * 7200 / TOKENS_PER_S / 2)
    for _ in range(17):
        simulation._arrive(Job("m", [120] * 60, simulation.deadline_s))
    simulation._dispatch()
    while simulation.running:
        simulation._finish()
        simulation._dispatch()
    assert len(simulation.in_time) == 6  # 8 would have filled the time to the last second
    assert simulation.refused == 11


def test_a_short_text_amid_documents_is_answered_within_two_batches() -> None:
    chance = random.Random(3)
    queue = FairQueue(10**9, {"m": BUDGET}, {"m": Throughput(0.0, 1 / TOKENS_PER_S, BUDGET)})
    for _ in range(12):
        queue.try_admit(Job("m", documents(chance)))
    for _ in range(200):
        for _ in range(chance.randint(0, 5)):
            assert queue.next_batch(0.0)
        text = Job("m", sentences(chance), deadline=1.0)
        queue.try_admit(text)
        jobs = [
            item.job
            for batch in (queue.next_batch(0.0), queue.next_batch(0.0))
            if batch
            for item in batch.items
        ]
        assert text in jobs
        queue.try_admit(Job("m", documents(chance)))


def test_a_service_with_nothing_to_do_refuses_nothing() -> None:
    queue = FairQueue(10**6, {"m": BUDGET}, {"m": Throughput(0.0, 1.0, BUDGET)})
    job = Job("m", [100] * 100, deadline=1.0)
    queue.try_admit(job, engine_is_idle=True)
    taken = 0
    while batch := queue.next_batch(0.5):
        taken += batch.tokens
    assert taken == 10_000


def test_a_long_text_is_refused_by_what_attention_costs_it() -> None:
    cost = CostModel(1000.0)
    speed = Throughput(0.0, 1e-3, BUDGET, cost=cost)
    queue = FairQueue(10**6, {"m": BUDGET}, {"m": speed})
    queue.try_admit(Job("m", [10]))
    expected_s = speed.seconds(speed.work(8000))
    assert expected_s == pytest.approx(8 * 9 / 1.032)
    with pytest.raises(TooLateError):
        queue.try_admit(Job("m", [8000], deadline=expected_s))
    queue.try_admit(Job("m", [8000], deadline=1.5 * expected_s))
    queue.try_admit(
        Job("m", [30], deadline=2.0)
    )  # the queue of short texts takes turns with that of documents
    _, batch = queue.next_batch(0.0), queue.next_batch(0.0)
    assert batch and batch.work == speed.work(8000)
    assert queue.seconds(batch) == pytest.approx(expected_s)
    assert queue.next_batch(0.0) is None and queue.tokens == 0
    assert all(each.work == 0 for each in queue._queues.values())


def test_what_runs_in_every_slot_counts_before_the_deadline() -> None:
    queue = FairQueue(10**6, {"m": BUDGET}, {"m": Throughput(0.0, 1e-3, BUDGET)})
    queue.try_admit(Job("m", [10], deadline=5.0), busy_s=3.0)
    with pytest.raises(TooLateError) as refused:
        queue.try_admit(Job("m", [10], deadline=5.0), busy_s=30.0)
    assert refused.value.retry_after_s < 30.1


def test_the_estimate_tells_when_to_come_back() -> None:
    queue = FairQueue(10**6, {"m": BUDGET}, {"m": Throughput(0.0, 1e-3, BUDGET)})
    queue.try_admit(Job("m", [100] * 30))
    late = Job("m", [100] * 10, deadline=4.0)
    with pytest.raises(TooLateError) as refused:
        queue.try_admit(late)
    seconds, now = refused.value.retry_after_s, 0.0
    while now < seconds:
        batch = queue.next_batch(now)
        assert batch
        now += batch.tokens / 1000
    queue.try_admit(Job("m", [100] * 10, deadline=now + 4.0), now)


def test_a_queue_finishes_when_each_other_had_at_most_as_much() -> None:
    assert finish_s(3.0, []) == 3.0
    assert finish_s(3.0, [(1.0, 0.0)]) == 4.0
    assert finish_s(3.0, [(10.0, 0.0), (10.0, 0.9)]) == 9.0
    assert finish_s(3.0, [(0.0, 0.25)]) == pytest.approx(4.0, rel=1e-3)


ARRIVALS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 600), min_size=1, max_size=40),
        st.sampled_from("mn"),
        st.floats(0.1, 60),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


@given(ARRIVALS, st.floats(10, 10_000), st.data())
def test_no_token_is_lost_and_no_job_waits_for_ever(
    arrivals: list[tuple[list[int], str, float, int]], rate: float, data: st.DataObject
) -> None:
    speeds = {model: Throughput(1e-3, 1 / rate, BUDGET) for model in "mn"}
    queue = FairQueue(10**9, {"m": BUDGET, "n": BUDGET}, speeds)
    now, admit, ended = 0.0, list[Job](), list[Job]()

    def work() -> bool:
        nonlocal now
        batch = queue.next_batch(now)
        ended.extend(queue.expired)
        queue.expired.clear()
        if batch is None:
            return False
        now += batch.tokens / rate
        speeds[batch.model].learn(batch.tokens, batch.tokens / rate)
        ended.extend(item.job for item in batch.items if item.stop == len(item.job.sizes))
        return True

    for sizes, model, deadline_s, batches in arrivals:
        job = Job(model, sizes, now + deadline_s)
        try:
            queue.try_admit(job, now)
            admit.append(job)
        except TooLateError as late:
            assert late.retry_after_s > 0
        if admit and data.draw(st.integers(0, 9)) == 0:
            gone = data.draw(st.sampled_from(admit))
            if gone not in ended and not gone.cancelled:
                queue.cancel(gone)
                ended.append(gone)
        for _ in range(batches):
            work()
        waiting = [job for job in admit if job not in ended]
        assert queue.tokens == sum(job.waiting_tokens for job in waiting)
        assert queue.texts == sum(len(job.sizes) - job.dispatched for job in waiting)
    while work():
        pass
    assert sorted(map(id, ended)) == sorted(map(id, admit))
    assert (queue.tokens, queue.texts) == (0, 0)
    assert all(each.tokens == 0 and not each.jobs for each in queue._queues.values())
