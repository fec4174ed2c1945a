"""Documents and the last free slot."""

from collections import deque

import pytest

from bert.errors import TooLateError
from service.scheduling.fair_queue import SHARE_MEMORY_S, Batch, FairQueue, Job, Throughput

DOCUMENT = [100] * 100
"""Windows of a document, of far over 64 full batches."""


def make_queue(slots: int = 2, budget: int = 100) -> FairQueue:
    return FairQueue(100_000, {"m": budget}, {"m": Throughput(0.0, 1e-4, budget, slots)}, slots)


def sentence(queue: FairQueue, now: float) -> Job:
    job = Job("m", [10])
    queue.try_admit(job, now)
    return job


def test_a_document_has_all_slots_while_nobody_else_comes() -> None:
    queue = make_queue()
    queue.try_admit(Job("m", DOCUMENT))
    assert queue.next_batch(0.0, 2) is not None
    assert queue.next_batch(0.0, 1) is not None


def test_while_sentences_come_a_document_leaves_a_slot_to_them() -> None:
    queue = make_queue()
    first = sentence(queue, 0.0)
    queue.try_admit(Job("m", DOCUMENT))
    batch = queue.next_batch(0.0, 1)
    assert batch is not None and [item.job for item in batch.items] == [first], "nothing long goes with it"
    assert queue.next_batch(1.0, 2) is not None, "the other slot is the document's"
    assert queue.next_batch(1.0, 1, long_running=1) is None, "and this one is kept"
    second = sentence(queue, 2.0)
    batch = queue.next_batch(2.0, 1, long_running=1)
    assert batch is not None and batch.items[0].job is second
    assert queue.next_batch(2.0 + 1.01 * SHARE_MEMORY_S, 1, long_running=1) is not None, (
        "nobody came any more"
    )


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_document_gets_on_while_sentences_come_faster_than_they_are_done(slots: int) -> None:
    queue, batches, now = make_queue(slots), list[Batch](), 0.0
    document = Job("m", DOCUMENT)
    queue.try_admit(document)
    running: deque[Batch] = deque()
    while document.dispatched < len(DOCUMENT) and now < 10.0:
        for _ in range(12):  # a batch is ten of them
            sentence(queue, now)
        if len(running) == slots:
            running.popleft()
        batch = queue.next_batch(now, slots - len(running), sum(each.is_long for each in running))
        assert batch is not None
        running.append(batch)
        batches.append(batch)
        now += 0.01 / slots
    shares = [item.job is document for batch in batches for item in batch.items]
    assert document.dispatched == len(DOCUMENT), "it had turns like any other queue"
    assert shares.count(False) > 0


def test_documents_that_are_too_late_are_dropped_though_the_slot_is_not_theirs() -> None:
    queue = make_queue()
    sentence(queue, 0.0)
    queue.next_batch(0.0, 2)
    late = Job("m", DOCUMENT, deadline=5.0)
    queue.try_admit(late, 0.0)
    assert queue.next_batch(6.0, 1, long_running=1) is None
    assert queue.expired == [late] and queue.tokens == 0


def test_one_slot_is_shared_by_turns_as_ever() -> None:
    queue = make_queue(slots=1)
    sentence(queue, 0.0)
    queue.try_admit(Job("m", DOCUMENT))
    assert queue.next_batch(0.0, 1) is not None
    assert queue.next_batch(0.0, 1) is not None


def test_lists_and_pages_use_all_slots_beside_sentences() -> None:
    queue = make_queue()
    sentence(queue, 0.0)
    queue.try_admit(Job("m", [30] * 60))
    assert queue.next_batch(0.0, 1) is not None
    assert queue.next_batch(0.0, 1) is not None


def test_a_document_that_would_be_late_on_the_slots_left_to_it_is_told_so() -> None:
    alone, beside = make_queue(), make_queue()
    for queue in (alone, beside):
        queue.try_admit(Job("m", [10]), 0.0)
        queue.next_batch(0.0, 2)
    needs_s = sum(DOCUMENT) * 1e-4 / 2  # on both slots
    alone.try_admit(Job("m", DOCUMENT, deadline=100.0 + 1.5 * needs_s), 100.0)
    try:
        beside.try_admit(Job("m", DOCUMENT, deadline=1.0 + 1.5 * needs_s), 1.0)
    except TooLateError as refused:
        assert refused.needs_s > 1.9 * needs_s
    else:
        raise AssertionError("admitted, though a sentence came a second ago")


def make_full_queue(slots: int = 2) -> FairQueue:
    return FairQueue(100_000, {"m": 100, "n": 100}, slots=slots, large_budgets={"m": 400})


def tokens(batch: Batch | None) -> int:
    assert batch is not None
    return batch.tokens


def test_batches_are_larger_where_everyone_waits_for_several_anyhow() -> None:
    queue = make_full_queue()
    for _ in range(79):
        sentence(queue, 0.0)
    assert tokens(queue.next_batch(0.0)) == 100, "790 tokens wait, and two slots would take 800"
    for _ in range(11):
        sentence(queue, 0.0)
    assert tokens(queue.next_batch(0.0)) == 400
    assert tokens(queue.next_batch(0.0)) == 100, "400 are left"


def test_documents_have_no_larger_batches_while_sentences_come() -> None:
    queue = make_full_queue()
    queue.try_admit(Job("m", DOCUMENT))
    assert tokens(queue.next_batch(0.0)) == 400, "it is alone"
    sentence(queue, 0.0)
    assert tokens(queue.next_batch(0.0)) <= 100
    assert tokens(queue.next_batch(1.0)) <= 100, "one came a second ago"
    assert tokens(queue.next_batch(1.0 + 1.01 * SHARE_MEMORY_S)) == 400


def test_a_model_that_shares_the_engine_has_no_larger_batches() -> None:
    queue = make_full_queue()
    for _ in range(200):
        sentence(queue, 0.0)
    queue.try_admit(Job("n", [10]), 0.0)
    while (batch := queue.next_batch(0.0)) is not None and batch.model != "n":
        pass
    assert batch is not None
    for _ in range(200):
        sentence(queue, 0.0)
    assert tokens(queue.next_batch(1.0)) == 100
    assert tokens(queue.next_batch(1.0 + 1.01 * SHARE_MEMORY_S)) == 400
