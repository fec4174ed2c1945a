"""Work is given up at its deadline, or when its client leaves, and by nobody else's doing."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from bert.errors import DeadlineExceededError
from service.http.problems import ClientGoneError
from service.http.timeouts import WATCH_AFTER_S, CancelOnDisconnect, Timeout
from service.pipeline.request_context import RequestContext


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> Message:
    return {"type": "http.disconnect"}


async def guarded(receive: Callable[[], Awaitable[Message]], timeout_ms: float, work_s: float) -> str:
    context = RequestContext("id", "/ner", time.monotonic(), timeout_ms)
    with CancelOnDisconnect(Request({"type": "http"}, receive), context):
        await asyncio.sleep(work_s)
    return "done"


def test_an_alarm_ends_what_takes_too_long() -> None:
    async def work() -> None:
        with Timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


def test_an_alarm_leaves_alone_what_is_done_in_time() -> None:
    async def work() -> int:
        with Timeout(0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(work()) == 0


def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def work() -> None:
        with Timeout(60):
            await asyncio.sleep(60)

    async def cancelled() -> bool:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_of_two_alarms_the_one_that_rang_says_so() -> None:
    async def work() -> str:
        try:
            with Timeout(60):
                try:
                    with Timeout(0.01):
                        await asyncio.sleep(60)
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    assert asyncio.run(work()) == "inner"


def test_work_ends_at_its_deadline() -> None:
    with pytest.raises(DeadlineExceededError):
        asyncio.run(guarded(never, 10, 60))


def test_work_ends_when_its_client_has_left() -> None:
    with pytest.raises(ClientGoneError):
        asyncio.run(guarded(at_once, 60_000, 60))


def test_work_that_is_done_before_anybody_looks_is_answered() -> None:
    assert asyncio.run(guarded(at_once, 60_000, WATCH_AFTER_S / 10)) == "done"
    assert asyncio.run(guarded(never, 60_000, 2 * WATCH_AFTER_S)) == "done"
