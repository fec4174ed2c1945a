"""Cancelling a request whose client disconnects, by turns of the event loop."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.types import Message

from service.http.route import WATCH_AFTER_S, CancelOnDisconnect
from service.pipeline.inputs import RequestContext


def test_a_client_that_leaves_as_its_request_ends_raises_nothing() -> None:
    errors = list[dict[str, Any]]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, error: errors.append(error))
        left, done = asyncio.Event(), loop.create_future()

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def handle() -> None:
            context = RequestContext("id", "/ner", time.monotonic(), 20_000)
            async with CancelOnDisconnect(Request({"type": "http"}, receive), context):
                await done

        handler = asyncio.ensure_future(handle())
        await asyncio.sleep(2 * WATCH_AFTER_S)
        left.set()
        done.set_result(None)
        await handler
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert not errors
