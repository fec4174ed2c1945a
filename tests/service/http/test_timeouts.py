"""Work is given up at its deadline, or when its client leaves, and by nobody else's doing."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from bert.errors import DeadlineExceededError
from service.http.problems import ClientGoneError
from service.http.route import WATCH_AFTER_S, CancelOnDisconnect
from service.pipeline.inputs import RequestContext


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> Message:
    return {"type": "http.disconnect"}


async def guarded(receive: Callable[[], Awaitable[Message]], timeout_ms: float, work_s: float) -> str:
    context = RequestContext("id", "/ner", time.monotonic(), timeout_ms)
    async with CancelOnDisconnect(Request({"type": "http"}, receive), context):
        await asyncio.sleep(work_s)
    return "done"


def test_work_ends_at_its_deadline() -> None:
    with pytest.raises(DeadlineExceededError):
        asyncio.run(guarded(never, 10, 60))


def test_work_ends_when_its_client_has_left() -> None:
    with pytest.raises(ClientGoneError):
        asyncio.run(guarded(at_once, 60_000, 60))


def test_work_that_is_done_before_anybody_looks_is_answered() -> None:
    assert asyncio.run(guarded(at_once, 60_000, WATCH_AFTER_S / 10)) == "done"
    assert asyncio.run(guarded(never, 60_000, 2 * WATCH_AFTER_S)) == "done"


def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def cancelled() -> bool:
        task = asyncio.create_task(guarded(never, 60_000, 60))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled())
