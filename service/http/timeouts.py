"""Giving up: work ends when its deadline passes or its client leaves, whichever is first."""

import asyncio
import time
from types import TracebackType

from starlette.requests import Request
from starlette.types import Message

from bert.errors import DeadlineExceededError
from service.http.problems import ClientGoneError
from service.pipeline.request_context import RequestContext

WATCH_AFTER_S = 0.05
"""A client that leaves is noticed from then on. Most requests are answered sooner, and the watch is a task of its own."""


class Timeout:
    """`with Timeout(seconds):` cancels the task inside after so long, and raises TimeoutError then.

    What asyncio.timeout does, for half of its cost: nothing is awaited or rescheduled.
    """

    __slots__ = ("_cancelling", "_has_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        """Nothing starts before the block."""
        self._seconds, self._has_expired = seconds, False

    def __enter__(self) -> "Timeout":
        """Start the clock."""
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self.expire)
        return self

    def expire(self) -> None:
        """Cancel what is inside, before the time."""
        if not self._has_expired:
            self._has_expired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock; tell this cancellation from others, which go on."""
        self._timer.cancel()
        if (
            self._has_expired
            and self._task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error


class CancelOnDisconnect:
    """`with CancelOnDisconnect(request, call):` cancels what is inside at the deadline or when the client leaves.

    Raises DeadlineExceededError or ClientGoneError then. The request's body must have been read: after it the
    next thing to receive is the disconnect.
    """

    __slots__ = ("_call", "_left", "_request", "_timeout", "_timer", "_watch")

    def __init__(self, request: Request, call: RequestContext) -> None:
        """Nothing starts before the block."""
        self._request, self._call = request, call
        self._left = False
        self._watch: asyncio.Future[Message] | None = None

    def __enter__(self) -> None:
        """Start both watches."""
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch_client)
        self._timeout = Timeout(self._call.deadline - time.monotonic())
        self._timeout.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End both watches, and say which of them ended the work."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.remove_done_callback(self._client_left)
            self._watch.cancel()
        try:
            self._timeout.__exit__(kind, error, trace)
        except TimeoutError:
            if self._left:
                raise ClientGoneError from None
            raise DeadlineExceededError(self._call.timeout_ms) from None
        if isinstance(error, DeadlineExceededError):  # the scheduler saw it first
            raise DeadlineExceededError(self._call.timeout_ms) from None

    def _watch_client(self) -> None:
        self._watch = asyncio.ensure_future(self._request.receive())
        self._watch.add_done_callback(self._client_left)

    def _client_left(self, watch: asyncio.Future[Message]) -> None:
        if not watch.cancelled():
            watch.exception()
            self._left = True
            self._timeout.expire()
