"""Cancel work when its deadline passes or its client disconnects."""

import asyncio
import time
from types import TracebackType

from starlette.requests import Request
from starlette.types import Message

from bert.errors import DeadlineExceededError
from service.http.problems import ClientGoneError
from service.pipeline.request_context import RequestContext

WATCH_AFTER_S = 0.05
"""Delay before watching for a disconnect. The watch needs a task, and most requests finish sooner."""


class Timeout:
    """`with Timeout(seconds):` cancels the block after that time and raises TimeoutError.

    It works like asyncio.timeout at half its cost, because nothing is awaited or rescheduled.
    """

    __slots__ = ("_cancelling", "_has_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        """Start nothing yet."""
        self._seconds, self._has_expired = seconds, False

    def __enter__(self) -> "Timeout":
        """Start the clock."""
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self.expire)
        return self

    def expire(self) -> None:
        """Cancel the block now."""
        if not self._has_expired:
            self._has_expired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock; pass on any cancellation that is not its own."""
        self._timer.cancel()
        if (
            self._has_expired
            and self._task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error


class CancelOnDisconnect:
    """`with CancelOnDisconnect(request, context):` cancels the block at the deadline or when the client disconnects.

    Raises DeadlineExceededError or ClientGoneError. The body must have been read before: the next message is then the
    disconnect.
    """

    __slots__ = ("_context", "_left", "_request", "_timeout", "_timer", "_watch")

    def __init__(self, request: Request, context: RequestContext) -> None:
        """Start nothing yet."""
        self._request, self._context = request, context
        self._left = False
        self._watch: asyncio.Future[Message] | None = None

    def __enter__(self) -> None:
        """Start both watches."""
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch_client)
        self._timeout = Timeout(self._context.deadline - time.monotonic())
        self._timeout.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop both watches and raise the error of the one that ended the block."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.remove_done_callback(self._client_left)
            self._watch.cancel()
        try:
            self._timeout.__exit__(kind, error, trace)
        except TimeoutError:
            if self._left:
                raise ClientGoneError from None
            raise DeadlineExceededError(self._context.timeout_ms) from None
        if isinstance(error, DeadlineExceededError):  # raised by the scheduler
            raise DeadlineExceededError(self._context.timeout_ms) from None

    def _watch_client(self) -> None:
        self._watch = asyncio.ensure_future(self._request.receive())
        self._watch.add_done_callback(self._client_left)

    def _client_left(self, watch: asyncio.Future[Message]) -> None:
        if not watch.cancelled():
            watch.exception()
            self._left = True
            self._timeout.expire()
