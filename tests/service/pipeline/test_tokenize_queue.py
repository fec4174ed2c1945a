"""Tokenising beside large texts: short texts overtake, the queue is bounded, failed and cancelled requests make room."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bert.encoding import Pieces
from bert.errors import (
    DeadlineExceededError,
    NotReadyError,
    QueueFullError,
    RequestTooLargeError,
    TooLateError,
)
from bert.tokenizer import Tokenizer
from service.pipeline.pipeline import TokenizeQueue
from service.pipeline.text_parts import PART_CHARACTERS
from tests.support.live import Live, eventually, serving

LONG, SHORT = [PART_CHARACTERS] * 25, [2_000]  # 200 KB in parts, and a page


@dataclass
class Reads:
    """Reads a part when the test lets it, and notes what was read."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    order: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> str:
        self.begun.append(name)
        assert self.permits.acquire(timeout=20)
        self.order.append(name)
        if name == "bad":
            raise ValueError(name)
        return name.upper()


def run(
    scenario: Callable[[TokenizeQueue, Reads], Awaitable[None]], threads: int = 1, most: int = 10**7
) -> Reads:
    async def main() -> None:
        queue = TokenizeQueue(threads, most)
        try:
            await asyncio.wait_for(scenario(queue, reads), 20)
        finally:
            reads.permits.release(10_000)
            await queue.close()

    reads = Reads()
    asyncio.run(main())
    return reads


def submitted(
    queue: TokenizeQueue, reads: Reads, name: str, sizes: Sequence[int], deadline: float = float("inf")
) -> "asyncio.Task[list[str]]":
    return asyncio.create_task(queue.run(reads, [name] * len(sizes), sizes, deadline))


async def until_one_runs(reads: Reads) -> None:
    while not reads.begun:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_page_waits_only_for_the_running_parts(threads: int) -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        long = [submitted(queue, reads, name, LONG) for name in "xy"]
        await asyncio.sleep(0)
        short = submitted(queue, reads, "short", SHORT)
        await asyncio.sleep(0)
        reads.permits.release(threads + 1)
        assert await short == ["SHORT"]
        reads.permits.release(100)
        assert [await task for task in long] == [["X"] * 25, ["Y"] * 25]

    assert "short" in run(scenario, threads).order[: threads + 1]


def test_results_are_in_the_order_of_the_parts() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        reads.permits.release(100)
        parts = [f"{number}" for number in range(40)]
        assert await queue.run(reads, parts, [5_000] * 40) == parts

    run(scenario, threads=3)


def test_what_could_never_wait_is_told_so_and_not_when_to_come_back() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        with pytest.raises(RequestTooLargeError, match="10001 characters or more and at most 10000 may wait"):
            await queue.run(reads, ["a", "b"], [5_000, 5_001])

    assert not run(scenario, most=10_000).begun


def test_a_full_queue_refuses_a_request_whole_with_a_retry_time() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        first = submitted(queue, reads, "a", [9_000])
        await until_one_runs(reads)
        second = submitted(queue, reads, "b", [9_000])
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="9000 characters are waiting and at most 10000 may") as full:
            await queue.run(reads, ["c"], [1_001])
        assert full.value.retry_after_s > 0
        reads.permits.release(10)
        assert (await first, await second) == (["A"], ["B"])
        assert await queue.run(reads, ["c"], [1_001]) == ["C"]

    assert run(scenario, most=10_000).order == ["a", "b", "c"]


def test_a_request_that_would_be_late_is_refused_at_once() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        long = submitted(queue, reads, "x", LONG)
        await asyncio.sleep(0)
        now = queue._clock()
        with pytest.raises(TooLateError, match="characters are waiting"):
            await queue.run(reads, ["y"] * 25, LONG, now + 0.01)
        reads.permits.release(100)
        await long

    assert "y" not in run(scenario).order


def test_a_request_past_its_deadline_is_never_read() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        clock, queue._clock = queue._clock(), lambda: now
        now = clock
        running = submitted(queue, reads, "x", SHORT)
        await asyncio.sleep(0)
        late = submitted(queue, reads, "y", SHORT, deadline=now + 1)
        await asyncio.sleep(0)
        now += 2
        reads.permits.release(1)
        assert await running == ["X"]
        with pytest.raises(DeadlineExceededError):
            await late

    assert run(scenario).order == ["x"]


def test_a_failing_part_fails_only_its_request() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        reads.permits.release(100)
        bad = submitted(queue, reads, "bad", LONG)
        good = submitted(queue, reads, "good", LONG)
        with pytest.raises(ValueError, match="bad"):
            await bad
        assert await good == ["GOOD"] * 25
        assert queue.queue.tokens == 0

    assert run(scenario).order.count("bad") == 1


def test_a_cancelled_request_leaves_the_queue() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        leaving = submitted(queue, reads, "x", LONG)
        await until_one_runs(reads)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert queue.queue.tokens == 0
        reads.permits.release(2)
        assert await queue.run(reads, ["y"], SHORT) == ["Y"]

    assert run(scenario).order == ["x", "y"]


def test_closing_refuses_waiting_requests() -> None:
    async def scenario(queue: TokenizeQueue, reads: Reads) -> None:
        waiting = [submitted(queue, reads, name, SHORT) for name in "xy"]
        await asyncio.sleep(0)
        reads.permits.release(10)
        await queue.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(ends[1], NotReadyError)
        with pytest.raises(NotReadyError):
            await queue.run(reads, ["z"], SHORT)

    run(scenario)


@pytest.fixture
def held(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Live, Reads]]:
    """A service whose two threads tokenise a part when the test lets them, with little room for what waits."""
    reads, pieces = Reads(), Tokenizer.pieces

    def gated(self: Tokenizer, texts: Sequence[str], *, only_ids: bool = False) -> list[Pieces]:
        if threading.current_thread().name.startswith("tokenize"):
            reads(texts[0][:5])
        return pieces(self, texts, only_ids=only_ids)

    with serving(bundles=[bundles / "mood"], tokenizer_threads=2, max_body_bytes=250_000) as live:
        monkeypatch.setattr(Tokenizer, "pieces", gated)
        yield live, reads
        reads.permits.release(10_000)


def test_a_page_beside_two_large_texts_is_answered_before_them(held: tuple[Live, Reads]) -> None:
    live, reads = held
    with ThreadPoolExecutor(3) as pool:
        large = [
            pool.submit(live.post, "/tokenize", {"text": f"{name} " * 28_000}) for name in ("paris", "where")
        ]
        eventually(lambda: live.metric("bert_requests_in_flight") == 2)
        page = pool.submit(live.post, "/classify", {"text": "funny " * 400, "truncate": True})
        eventually(lambda: live.metric("bert_requests_in_flight") == 3)
        reads.permits.release(4)
        assert page.result(120).status == 200
        assert not any(each.done() for each in large)
        reads.permits.release(1_000)
        assert {each.result(120).status for each in large} == {413}, "over what /tokenize shows"
    assert "funny" in reads.order[:4]


def test_tokenize_is_refused_when_too_much_waits(held: tuple[Live, Reads]) -> None:
    live, reads = held
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(live.post, "/tokenize", {"text": "film " * 48_000}) for _ in range(12)]
        eventually(lambda: any(each.done() for each in waiting))
        refused = [each for each in waiting if each.done()]
        reply = refused[0].result()
        assert (reply.status, reply.json["type"]) == (429, "urn:bert-serve:queue-full")
        assert "characters are waiting" in reply.json["detail"]
        assert int(reply.headers["retry-after"]) >= 1
        reads.permits.release(10_000)
        assert {each.result(120).status for each in waiting} == {413, 429}
