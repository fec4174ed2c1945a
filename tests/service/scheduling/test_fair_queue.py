import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import QueueFullError
from service.scheduling.fair_queue import Batch, FairQueue, Job


def make_queue(budget: int = 100, max_tokens: int = 10_000, **others: int) -> FairQueue:
    return FairQueue(max_tokens, {"m": budget, **others})


def offered(queue: FairQueue, *sizes: list[int], model: str = "m") -> list[Job]:
    jobs = [Job(model, job) for job in sizes]
    for job in jobs:
        queue.try_admit(job)
    return jobs


def taken(batch: Batch | None) -> list[tuple[Job, int, int]]:
    assert batch is not None
    return [(item.job, item.start, item.stop) for item in batch.items]


def drain(queue: FairQueue, now: float = 0.0) -> list[Batch]:
    batches = []
    while (batch := queue.next_batch(now)) is not None:
        batches.append(batch)
    return batches


def test_a_batch_is_filled_first_come_first_served_up_to_the_budget() -> None:
    queue = make_queue(100)
    a, b, c = offered(queue, [40], [50], [20])
    assert taken(queue.next_batch(0)) == [(a, 0, 1), (b, 0, 1)]
    assert taken(queue.next_batch(0)) == [(c, 0, 1)]
    assert queue.next_batch(0) is None


def test_one_that_does_not_fit_keeps_its_place() -> None:
    queue = make_queue(100)
    a, b, c = offered(queue, [60], [60], [10])
    assert taken(queue.next_batch(0)) == [(a, 0, 1)]
    assert taken(queue.next_batch(0)) == [(b, 0, 1), (c, 0, 1)]


def test_a_text_over_the_budget_runs_alone() -> None:
    queue = make_queue(100)
    a, b = offered(queue, [300], [10])
    assert taken(queue.next_batch(0)) == [(a, 0, 1)]
    assert taken(queue.next_batch(0)) == [(b, 0, 1)]


def test_a_long_document_takes_turns_with_sentences() -> None:
    queue = make_queue(100)
    document, first, second = offered(queue, [25] * 100, [10], [10])
    assert taken(queue.next_batch(0)) == [(first, 0, 1), (document, 0, 2), (second, 0, 1), (document, 2, 3)]
    (late,) = offered(queue, [10])
    shares = taken(queue.next_batch(0))
    assert (late, 0, 1) in shares
    assert sum(stop - start for job, start, stop in shares if job is document) <= 3


def test_a_sentence_fills_the_room_that_a_window_is_too_long_for() -> None:
    queue = make_queue(100)
    document, a, b = offered(queue, [60] * 20, [30], [20])
    assert taken(queue.next_batch(0)) == [(a, 0, 1), (document, 0, 1)]
    assert taken(queue.next_batch(0)) == [(b, 0, 1), (document, 1, 2)]


def test_what_waits_is_divided_among_the_free_slots() -> None:
    queue = make_queue(100)
    a, b, c, d = offered(queue, [20], [20], [20], [20])
    assert taken(queue.next_batch(0, free_slots=2)) == [(a, 0, 1), (b, 0, 1)]
    assert taken(queue.next_batch(0, free_slots=1)) == [(c, 0, 1), (d, 0, 1)]


def test_a_text_is_taken_by_one_of_many_free_slots() -> None:
    queue = make_queue(100)
    (a,) = offered(queue, [90])
    assert taken(queue.next_batch(0, free_slots=8)) == [(a, 0, 1)]


def test_a_document_alone_fills_the_batch() -> None:
    queue = make_queue(100)
    offered(queue, [25] * 8)
    assert [batch.tokens for batch in drain(queue)] == [100, 100]


def test_documents_of_like_size_finish_one_after_another_by_arrival() -> None:
    queue = make_queue(100)
    documents = offered(queue, *([[25] * 40] * 5))
    order = [item.job for batch in drain(queue) for item in batch.items]
    assert [order.index(document) for document in documents] == sorted(map(order.index, documents))
    assert sorted(order, key=documents.index) == order


def test_a_list_does_not_wait_for_a_book() -> None:
    queue = make_queue(100, max_tokens=100_000)
    book, page = offered(queue, [50] * 1000, [50] * 20)
    batches = drain(queue)
    assert max(i for i, batch in enumerate(batches) for item in batch.items if item.job is page) <= 20
    assert sum(item.tokens for batch in batches for item in batch.items if item.job is book) == 50_000


def test_the_bound_refuses_a_request_whole_and_at_once() -> None:
    queue = make_queue(max_tokens=100)
    offered(queue, [60])
    with pytest.raises(QueueFullError) as refused:
        offered(queue, [20, 30])
    assert (refused.value.queued_tokens, refused.value.max_queue_tokens) == (60, 100)
    assert (queue.tokens, queue.texts) == (60, 1)
    offered(queue, [20, 20])
    assert (queue.tokens, queue.texts) == (100, 3)


def test_a_retry_passes_the_bound_and_counts() -> None:
    queue = make_queue(100, max_tokens=100)
    offered(queue, [60])
    again = Job("m", [70])
    queue.admit(again)
    assert queue.tokens == 130
    with pytest.raises(QueueFullError):
        queue.try_admit(Job("m", [1]))
    assert [item.job.sizes for batch in drain(queue) for item in batch.items] == [[60], [70]]
    assert queue.tokens == 0


def test_what_runs_no_longer_counts_as_waiting() -> None:
    queue = make_queue(100)
    offered(queue, [40, 40], [40])
    queue.next_batch(0)
    assert (queue.tokens, queue.texts) == (40, 1)


def test_a_cancelled_job_is_neither_run_nor_counted() -> None:
    queue = make_queue(100)
    a, b = offered(queue, [40], [40])
    queue.cancel(a)
    queue.cancel(a)
    assert (queue.tokens, queue.texts) == (40, 1)
    assert taken(queue.next_batch(0)) == [(b, 0, 1)]


def test_the_rest_of_a_cancelled_document_is_dropped() -> None:
    queue = make_queue(100)
    (document,) = offered(queue, [50] * 10)
    queue.next_batch(0)
    queue.cancel(document)
    assert queue.next_batch(0) is None
    assert (queue.tokens, queue.texts) == (0, 0)


def test_past_its_deadline_a_job_is_dropped_when_the_batch_is_formed() -> None:
    queue = make_queue(100)
    late, early = Job("m", [10], deadline=5.0), Job("m", [10], deadline=20.0)
    queue.try_admit(late)
    queue.try_admit(early)
    assert taken(queue.next_batch(now=10.0)) == [(early, 0, 1)]
    assert queue.expired == [late]
    assert queue.tokens == 0


def test_models_take_turns_by_arrival() -> None:
    queue = make_queue(100, n=100)
    (a,) = offered(queue, [10])
    (b,) = offered(queue, [10], model="n")
    (c,) = offered(queue, [10])
    assert taken(queue.next_batch(0)) == [(a, 0, 1), (c, 0, 1)]
    assert taken(queue.next_batch(0)) == [(b, 0, 1)]


def test_a_busy_model_does_not_starve_another() -> None:
    queue = make_queue(100, n=100)
    offered(queue, *([[50]] * 20))
    (other,) = offered(queue, [10], model="n")
    offered(queue, *([[50]] * 20))
    batches = drain(queue)
    assert [batch.model for batch in batches].index("n") == 1
    assert taken(batches[1]) == [(other, 0, 1)]


def test_a_failed_batch_is_run_again_one_job_at_a_time_and_first() -> None:
    queue = make_queue(100)
    a, b, _ = offered(queue, [40], [40], [90])
    failed = queue.next_batch(0)
    assert failed is not None
    queue.cancel(b)
    queue.retry_separately(failed)
    assert taken(queue.next_batch(0)) == [(a, 0, 1)]
    assert [batch.tokens for batch in drain(queue)] == [90]


def test_what_is_run_again_counts_as_waiting_until_then() -> None:
    queue = make_queue(100)
    a, b = offered(queue, [40], [30, 20])
    failed = queue.next_batch(0)
    assert failed is not None
    assert (queue.tokens, queue.texts, queue.waiting("m")) == (0, 0, (0, 0))
    queue.retry_separately(failed)
    assert (queue.tokens, queue.texts, queue.waiting("m")) == (90, 3, (90, 3))
    queue.cancel(b)
    assert (queue.tokens, queue.texts, queue.waiting("m")) == (40, 1, (40, 1))
    assert taken(queue.next_batch(0)) == [(a, 0, 1)]
    assert (queue.tokens, queue.texts, queue.waiting("m")) == (0, 0, (0, 0))


def test_what_is_run_again_is_dropped_past_its_deadline() -> None:
    queue = make_queue(100)
    late, other = offered(queue, [40], [40])
    late.deadline = 5.0
    failed = queue.next_batch(0)
    assert failed is not None
    queue.retry_separately(failed)
    assert taken(queue.next_batch(5.0)) == [(other, 0, 1)]
    assert queue.expired == [late] and late.cancelled
    assert (queue.tokens, queue.texts) == (0, 0)


JOBS = st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=12), min_size=1, max_size=20)


@given(JOBS, st.integers(10, 200))
def test_everything_is_taken_once_and_in_order(jobs: list[list[int]], budget: int) -> None:
    queue = make_queue(budget, max_tokens=10**9)
    made = offered(queue, *jobs)
    seen: dict[int, list[int]] = {id(job): [] for job in made}
    for batch in drain(queue):
        assert batch.texts == 1 or batch.tokens <= budget
        for item in batch.items:
            seen[id(item.job)] += range(item.start, item.stop)
    assert all(seen[id(job)] == list(range(len(job.sizes))) for job in made)
    assert (queue.tokens, queue.texts) == (0, 0)


@given(JOBS, st.data())
def test_the_counts_never_leak(jobs: list[list[int]], data: st.DataObject) -> None:
    queue = make_queue(100, max_tokens=10**9)
    alive = offered(queue, *jobs)
    while alive:
        if data.draw(st.booleans()):
            queue.cancel(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        else:
            queue.next_batch(0)
        waiting = [job for job in alive if job.dispatched < len(job.sizes)]
        assert queue.tokens == sum(job.waiting_tokens for job in waiting)
        assert queue.texts == sum(len(job.sizes) - job.dispatched for job in waiting)
        if not waiting:
            break
