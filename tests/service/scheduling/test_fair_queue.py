import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import QueueFullError
from service.scheduling.fair_queue import Batch, FairQueue
from service.scheduling.line import Job


def queue(budget: int = 100, max_tokens: int = 10_000, **others: int) -> FairQueue:
    return FairQueue(max_tokens, {"m": budget, **others})


def offered(line: FairQueue, *sizes: list[int], model: str = "m") -> list[Job]:
    jobs = [Job(model, job) for job in sizes]
    for job in jobs:
        line.offer(job)
    return jobs


def taken(batch: Batch | None) -> list[tuple[Job, int, int]]:
    assert batch is not None
    return [(share.job, share.start, share.stop) for share in batch.shares]


def drain(line: FairQueue, now: float = 0.0) -> list[Batch]:
    batches = []
    while (batch := line.take(now)) is not None:
        batches.append(batch)
    return batches


def test_a_batch_is_filled_first_come_first_served_up_to_the_budget() -> None:
    line = queue(100)
    a, b, c = offered(line, [40], [50], [20])
    assert taken(line.take(0)) == [(a, 0, 1), (b, 0, 1)]
    assert taken(line.take(0)) == [(c, 0, 1)]
    assert line.take(0) is None


def test_one_that_does_not_fit_keeps_its_place() -> None:
    line = queue(100)
    a, b, c = offered(line, [60], [60], [10])
    assert taken(line.take(0)) == [(a, 0, 1)]
    assert taken(line.take(0)) == [(b, 0, 1), (c, 0, 1)]


def test_a_text_over_the_budget_runs_alone() -> None:
    line = queue(100)
    a, b = offered(line, [300], [10])
    assert taken(line.take(0)) == [(a, 0, 1)]
    assert taken(line.take(0)) == [(b, 0, 1)]


def test_a_long_document_takes_turns_with_sentences() -> None:
    line = queue(100)
    document, first, second = offered(line, [25] * 100, [10], [10])
    assert taken(line.take(0)) == [(first, 0, 1), (document, 0, 2), (second, 0, 1), (document, 2, 3)]
    (late,) = offered(line, [10])
    shares = taken(line.take(0))
    assert (late, 0, 1) in shares
    assert sum(stop - start for job, start, stop in shares if job is document) <= 3


def test_a_sentence_fills_the_room_that_a_window_is_too_long_for() -> None:
    line = queue(100)
    document, a, b = offered(line, [60] * 20, [30], [20])
    assert taken(line.take(0)) == [(a, 0, 1), (document, 0, 1)]
    assert taken(line.take(0)) == [(b, 0, 1), (document, 1, 2)]


def test_what_waits_is_divided_among_the_free_slots() -> None:
    line = queue(100)
    a, b, c, d = offered(line, [20], [20], [20], [20])
    assert taken(line.take(0, free_slots=2)) == [(a, 0, 1), (b, 0, 1)]
    assert taken(line.take(0, free_slots=1)) == [(c, 0, 1), (d, 0, 1)]


def test_a_text_is_taken_by_one_of_many_free_slots() -> None:
    line = queue(100)
    (a,) = offered(line, [90])
    assert taken(line.take(0, free_slots=8)) == [(a, 0, 1)]


def test_a_document_alone_fills_the_batch() -> None:
    line = queue(100)
    offered(line, [25] * 8)
    assert [batch.tokens for batch in drain(line)] == [100, 100]


def test_documents_of_like_size_finish_one_after_another_by_arrival() -> None:
    line = queue(100)
    documents = offered(line, *([[25] * 40] * 5))
    order = [share.job for batch in drain(line) for share in batch.shares]
    assert [order.index(document) for document in documents] == sorted(map(order.index, documents))
    assert sorted(order, key=documents.index) == order


def test_a_list_does_not_wait_for_a_book() -> None:
    line = queue(100, max_tokens=100_000)
    book, page = offered(line, [50] * 1000, [50] * 20)
    batches = drain(line)
    assert max(i for i, batch in enumerate(batches) for share in batch.shares if share.job is page) <= 20
    assert sum(share.tokens for batch in batches for share in batch.shares if share.job is book) == 50_000


def test_the_bound_refuses_a_request_whole_and_at_once() -> None:
    line = queue(max_tokens=100)
    offered(line, [60])
    with pytest.raises(QueueFullError) as refused:
        offered(line, [20, 30])
    assert (refused.value.queued_tokens, refused.value.max_queue_tokens) == (60, 100)
    assert (line.tokens, line.texts) == (60, 1)
    offered(line, [20, 20])
    assert (line.tokens, line.texts) == (100, 3)


def test_what_was_let_in_before_passes_the_bound_and_counts() -> None:
    line = queue(100, max_tokens=100)
    offered(line, [60])
    again = Job("m", [70])
    line.let_in(again)
    assert line.tokens == 130
    with pytest.raises(QueueFullError):
        line.offer(Job("m", [1]))
    assert [share.job.sizes for batch in drain(line) for share in batch.shares] == [[60], [70]]
    assert line.tokens == 0


def test_what_runs_no_longer_counts_as_waiting() -> None:
    line = queue(100)
    offered(line, [40, 40], [40])
    line.take(0)
    assert (line.tokens, line.texts) == (40, 1)


def test_a_job_that_is_withdrawn_is_not_taken_and_not_counted() -> None:
    line = queue(100)
    a, b = offered(line, [40], [40])
    line.withdraw(a)
    line.withdraw(a)
    assert (line.tokens, line.texts) == (40, 1)
    assert taken(line.take(0)) == [(b, 0, 1)]


def test_the_rest_of_a_withdrawn_document_is_dropped() -> None:
    line = queue(100)
    (document,) = offered(line, [50] * 10)
    line.take(0)
    line.withdraw(document)
    assert line.take(0) is None
    assert (line.tokens, line.texts) == (0, 0)


def test_past_its_deadline_a_job_is_dropped_when_the_batch_is_formed() -> None:
    line = queue(100)
    late, early = Job("m", [10], deadline=5.0), Job("m", [10], deadline=20.0)
    line.offer(late)
    line.offer(early)
    assert taken(line.take(now=10.0)) == [(early, 0, 1)]
    assert line.expired == [late]
    assert line.tokens == 0


def test_models_take_turns_by_arrival() -> None:
    line = queue(100, n=100)
    (a,) = offered(line, [10])
    (b,) = offered(line, [10], model="n")
    (c,) = offered(line, [10])
    assert taken(line.take(0)) == [(a, 0, 1), (c, 0, 1)]
    assert taken(line.take(0)) == [(b, 0, 1)]


def test_a_busy_model_does_not_starve_another() -> None:
    line = queue(100, n=100)
    offered(line, *([[50]] * 20))
    (other,) = offered(line, [10], model="n")
    offered(line, *([[50]] * 20))
    batches = drain(line)
    assert [batch.model for batch in batches].index("n") == 1
    assert taken(batches[1]) == [(other, 0, 1)]


def test_a_failed_batch_is_run_again_one_job_at_a_time_and_first() -> None:
    line = queue(100)
    a, b, _ = offered(line, [40], [40], [90])
    failed = line.take(0)
    assert failed is not None
    line.withdraw(b)
    line.retry_alone(failed)
    assert taken(line.take(0)) == [(a, 0, 1)]
    assert [batch.tokens for batch in drain(line)] == [90]


JOBS = st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=12), min_size=1, max_size=20)


@given(JOBS, st.integers(10, 200))
def test_everything_is_taken_once_and_in_order(jobs: list[list[int]], budget: int) -> None:
    line = queue(budget, max_tokens=10**9)
    made = offered(line, *jobs)
    seen: dict[int, list[int]] = {id(job): [] for job in made}
    for batch in drain(line):
        assert batch.texts == 1 or batch.tokens <= budget
        for share in batch.shares:
            seen[id(share.job)] += range(share.start, share.stop)
    assert all(seen[id(job)] == list(range(len(job.sizes))) for job in made)
    assert (line.tokens, line.texts) == (0, 0)


@given(JOBS, st.data())
def test_the_counts_never_leak(jobs: list[list[int]], data: st.DataObject) -> None:
    line = queue(100, max_tokens=10**9)
    alive = offered(line, *jobs)
    while alive:
        if data.draw(st.booleans()):
            line.withdraw(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        else:
            line.take(0)
        waiting = [job for job in alive if job.taken < len(job.sizes)]
        assert line.tokens == sum(job.waiting_tokens for job in waiting)
        assert line.texts == sum(len(job.sizes) - job.taken for job in waiting)
        if not waiting:
            break
