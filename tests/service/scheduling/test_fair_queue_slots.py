"""Documents and the last free slot."""

from collections import deque

import pytest

from bert.errors import TooLateError
from service.scheduling.fair_queue import Batch, FairQueue
from service.scheduling.line import USE_MEMORY_S, Job
from service.scheduling.throughput import Speed

DOCUMENT = [100] * 100
"""Far over 64 full batches."""


def queue(slots: int = 2, budget: int = 100) -> FairQueue:
    return FairQueue(100_000, {"m": budget}, {"m": Speed(0.0, 1e-4, budget, slots)}, slots)


def sentence(line: FairQueue, now: float) -> Job:
    job = Job("m", [10])
    line.offer(job, now)
    return job


def test_a_document_has_all_slots_while_nobody_else_comes() -> None:
    line = queue()
    line.offer(Job("m", DOCUMENT))
    assert line.take(0.0, 2) is not None
    assert line.take(0.0, 1) is not None


def test_while_sentences_come_a_document_leaves_a_slot_to_them() -> None:
    line = queue()
    first = sentence(line, 0.0)
    line.offer(Job("m", DOCUMENT))
    batch = line.take(0.0, 1)
    assert batch is not None and [share.job for share in batch.shares] == [first], "nothing long goes with it"
    assert line.take(1.0, 2) is not None, "the other slot is the document's"
    assert line.take(1.0, 1, long_running=1) is None, "and this one is kept"
    second = sentence(line, 2.0)
    batch = line.take(2.0, 1, long_running=1)
    assert batch is not None and batch.shares[0].job is second
    assert line.take(2.0 + 1.01 * USE_MEMORY_S, 1, long_running=1) is not None, "nobody came any more"


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_document_gets_on_while_sentences_come_faster_than_they_are_done(slots: int) -> None:
    line, batches, now = queue(slots), list[Batch](), 0.0
    document = Job("m", DOCUMENT)
    line.offer(document)
    running: deque[Batch] = deque()
    while document.taken < len(DOCUMENT) and now < 10.0:
        for _ in range(12):  # a batch is ten of them
            sentence(line, now)
        if len(running) == slots:
            running.popleft()
        batch = line.take(now, slots - len(running), sum(each.is_long for each in running))
        assert batch is not None
        running.append(batch)
        batches.append(batch)
        now += 0.01 / slots
    shares = [share.job is document for batch in batches for share in batch.shares]
    assert document.taken == len(DOCUMENT), "it had turns like any other line"
    assert shares.count(False) > 0


def test_documents_that_are_too_late_are_dropped_though_the_slot_is_not_theirs() -> None:
    line = queue()
    sentence(line, 0.0)
    line.take(0.0, 2)
    late = Job("m", DOCUMENT, deadline=5.0)
    line.offer(late, 0.0)
    assert line.take(6.0, 1, long_running=1) is None
    assert line.expired == [late] and line.tokens == 0


def test_one_slot_is_shared_by_turns_as_ever() -> None:
    line = queue(slots=1)
    sentence(line, 0.0)
    line.offer(Job("m", DOCUMENT))
    assert line.take(0.0, 1) is not None
    assert line.take(0.0, 1) is not None


def test_lists_and_pages_use_all_slots_beside_sentences() -> None:
    line = queue()
    sentence(line, 0.0)
    line.offer(Job("m", [30] * 60))
    assert line.take(0.0, 1) is not None
    assert line.take(0.0, 1) is not None


def test_a_document_that_would_be_late_on_the_slots_left_to_it_is_told_so() -> None:
    alone, beside = queue(), queue()
    for line in (alone, beside):
        line.offer(Job("m", [10]), 0.0)
        line.take(0.0, 2)
    needs_s = sum(DOCUMENT) * 1e-4 / 2  # on both slots
    alone.offer(Job("m", DOCUMENT, deadline=100.0 + 1.5 * needs_s), 100.0)
    try:
        beside.offer(Job("m", DOCUMENT, deadline=1.0 + 1.5 * needs_s), 1.0)
    except TooLateError as refused:
        assert refused.needs_s > 1.9 * needs_s
    else:
        raise AssertionError("let in, though a sentence came a second ago")


def full_queue(slots: int = 2) -> FairQueue:
    return FairQueue(100_000, {"m": 100, "n": 100}, slots=slots, full={"m": 400})


def tokens(batch: Batch | None) -> int:
    assert batch is not None
    return batch.tokens


def test_batches_are_larger_where_everyone_waits_for_several_anyhow() -> None:
    line = full_queue()
    for _ in range(79):
        sentence(line, 0.0)
    assert tokens(line.take(0.0)) == 100, "790 tokens wait, and two slots would take 800"
    for _ in range(11):
        sentence(line, 0.0)
    assert tokens(line.take(0.0)) == 400
    assert tokens(line.take(0.0)) == 100, "400 are left"


def test_documents_have_no_larger_batches_while_sentences_come() -> None:
    line = full_queue()
    line.offer(Job("m", DOCUMENT))
    assert tokens(line.take(0.0)) == 400, "it is alone"
    sentence(line, 0.0)
    assert tokens(line.take(0.0)) <= 100
    assert tokens(line.take(1.0)) <= 100, "one came a second ago"
    assert tokens(line.take(1.0 + 1.01 * USE_MEMORY_S)) == 400


def test_a_model_that_shares_the_engine_has_no_larger_batches() -> None:
    line = full_queue()
    for _ in range(200):
        sentence(line, 0.0)
    line.offer(Job("n", [10]), 0.0)
    while (batch := line.take(0.0)) is not None and batch.model != "n":
        pass
    assert batch is not None
    for _ in range(200):
        sentence(line, 0.0)
    assert tokens(line.take(1.0)) == 100
    assert tokens(line.take(1.0 + 1.01 * USE_MEMORY_S)) == 400
