"""Giving up: work ends when its deadline passes or its client leaves, whichever is first."""

import asyncio
import time
from types import TracebackType

from starlette.requests import Request
from starlette.types import Message

from bert.errors import DeadlineExceededError
from service.call import Call
from service.problems import ClientGoneError, FieldError, unprocessable

HEADER = "x-timeout-ms"


def timeout_ms(request: Request, limit_ms: int) -> float:
    """Return the request's deadline.

    X-Timeout-Ms, at most the limit; raises the 422 of a header that is no number.
    """
    sent = request.headers.get(HEADER)
    if sent is None:
        return limit_ms
    if not (sent.isascii() and sent.isdigit() and int(sent[:12]) > 0):
        raise unprocessable(
            [FieldError("X-Timeout-Ms", "must be a whole number of milliseconds, at least 1")]
        )
    return min(int(sent[:12]), limit_ms)


class Guard:
    """`async with Guard(request, call):` cancels what is inside at the deadline or when the client leaves.

    Raises DeadlineExceededError or ClientGoneError then. The request's body must have been read: after it the
    next thing to receive is the disconnect.
    """

    def __init__(self, request: Request, call: Call) -> None:
        """Nothing starts before the block."""
        self._request, self._call = request, call
        self._left = False

    async def __aenter__(self) -> None:
        """Start both watches."""
        delay = max(0.0, self._call.deadline - time.monotonic())
        self._scope = asyncio.timeout(delay)
        await self._scope.__aenter__()
        self._watch: asyncio.Future[Message] = asyncio.ensure_future(self._request.receive())
        self._watch.add_done_callback(self._client_left)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End both watches, and say which of them ended the work."""
        self._watch.remove_done_callback(self._client_left)
        self._watch.cancel()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._left:
                raise ClientGoneError from None
            raise DeadlineExceededError(self._call.timeout_ms) from None
        if isinstance(error, DeadlineExceededError):  # the scheduler saw it first
            raise DeadlineExceededError(self._call.timeout_ms) from None

    def _client_left(self, watch: asyncio.Future[Message]) -> None:
        if not watch.cancelled():
            watch.exception()
            self._left = True
            self._scope.reschedule(asyncio.get_running_loop().time())
