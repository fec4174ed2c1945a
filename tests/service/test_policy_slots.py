"""Documents and the last free slot."""

from bert.errors import TooLateError
from service.line import USE_MEMORY_S, Job
from service.policy import FairQueue
from service.speed import Speed

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
    assert line.take(1.0, 1) is None, "and this one is kept"
    second = sentence(line, 2.0)
    batch = line.take(2.0, 1)
    assert batch is not None and batch.shares[0].job is second
    assert line.take(2.0 + 1.01 * USE_MEMORY_S, 1) is not None, "nobody came any more"


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
