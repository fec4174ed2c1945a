"""Bounds on what a process holds: bodies of requests, responses that clients have not read, and lines in work."""

import asyncio
import threading
from asyncio import WriteTransport
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.http.problems import ProblemError
from service.system import release_free_memory

BODY_SHARE = "body_share"
"""Key in a request's state for its BodyShare."""
FREE_BYTES = 2**14
"""Bytes of each body, and of each connection's buffer, that are not counted. So a small request is never refused here, and
`max_connections` bounds what those hold together."""
RESPONSES_FULL = "responses-full"
"""Code of the problem of a process whose clients leave too much unread."""
LARGEST_RESPONSES = 8
"""Bound of what all clients may leave unread, in responses of the largest size."""
BYTES_PER_TOKEN = 4
"""Bytes of a line for each token, about what English has. Its exact tokens are known too late."""
MAX_LINES = 128
"""About the most lines in work at once. More that end together would hold the event loop for too long."""


def _release_in_thread() -> None:
    threading.Thread(target=release_free_memory, daemon=True).start()


class BodyBudget:
    """Bytes of bodies that the requests and connections of a process hold together."""

    def __init__(self, max_bytes: int, release_memory: Callable[[], object] = _release_in_thread) -> None:
        """`release_memory` is called when most of what was held has been freed, so that the system gets it back."""
        self._max_bytes, self._release_memory = max_bytes, release_memory
        self.held = self._peak = 0
        """Bytes that are held now, and the most since memory was last released."""

    def share(self) -> "BodyShare":
        """Return an empty share for one request or connection."""
        return BodyShare(self)

    def add(self, size: int) -> None:
        """Count `size` more bytes, or fewer if it is negative. Raises the 503 of a budget that would be exceeded."""
        if size > 0 and self.held + size > self._max_bytes:
            detail = (
                f"the bodies of all requests hold {self.held} bytes, and at most {self._max_bytes} may be held "
                "(max_bodies_bytes); try again in 1 s"
            )
            headers = {"Retry-After": "1", "Connection": "close"}
            raise ProblemError(503, "bodies-full", detail, headers=headers, reason="bodies_full")
        self.held += size
        self._peak = max(self._peak, self.held)
        if self._peak >= self._max_bytes // 4 and self.held <= self._peak // 8:
            self._peak = self.held
            self._release_memory()


class BodyShare:
    """Bytes that one request or connection holds. Whoever makes it calls `hold(0)` at the end."""

    __slots__ = ("_budget", "_counted")

    def __init__(self, budget: BodyBudget) -> None:
        """Hold nothing."""
        self._budget, self._counted = budget, 0

    def hold(self, size: int) -> None:
        """Set the bytes that are held in all. Raises the 503 of a full budget; what was held before stays counted."""
        counted = max(0, size - FREE_BYTES)
        if counted != self._counted:
            self._budget.add(counted - self._counted)
            self._counted = counted


class UnsentResponses:
    """Large responses in the making, those of lines that wait for their turn, and what waits in connections."""

    def __init__(self, max_response_bytes: int) -> None:
        """Allow LARGEST_RESPONSES of `max_response_bytes`."""
        self._max_bytes = LARGEST_RESPONSES * max_response_bytes
        self._making = 0
        self.of_lines = 0
        """Bytes of responses of lines that are not written yet."""
        self.transports = set[WriteTransport]()
        """The open connections."""

    def held(self) -> int:
        """Return the bytes that wait now."""
        return self._making + self.of_lines + sum(each.get_write_buffer_size() for each in self.transports)

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Count a response of about `size` bytes while it is made; raises the 503 of too much that clients left unread."""
        if (held := self.held()) + size > self._max_bytes:
            detail = (
                f"{held} bytes of responses wait to be read by their clients, and at most {self._max_bytes} may "
                f"({LARGEST_RESPONSES} × max_response_bytes); try again in 1 s"
            )
            headers = {"Retry-After": "1"}
            raise ProblemError(503, RESPONSES_FULL, detail, headers=headers, reason="responses_full")
        self._making += size
        try:
            yield
        finally:
            self._making -= size


class InFlightLimit:
    """Tokens that streams may have in work, first come first served.

    `max_tokens` should be the tokens of one batch for each engine slot, and of two batches at least. Then the engine has
    work at any time, and a request beside a stream waits for little more than a batch.
    """

    def __init__(self, max_tokens: int) -> None:
        """Start with nothing in work."""
        self._max_tokens, self._tokens = max(2, max_tokens), 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, line: bytes) -> int:
        """Wait until a line may be worked on; return what to `give_back`."""
        least, most = self._max_tokens // MAX_LINES, self._max_tokens // 2
        # Two lines always fit, so that one is read while the other is in the engine.
        tokens = min(max(len(line) // BYTES_PER_TOKEN, least, 1), most)
        if self._waiting or not self._has_room(tokens):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((tokens, turn))
            try:
                await turn
            except asyncio.CancelledError:
                was_given = turn.done() and not turn.cancelled()
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
                self.give_back(tokens if was_given else 0)
                raise
        else:
            self._tokens += tokens
        return tokens

    def give_back(self, tokens: int) -> None:
        """Note that a line is done, and let the next ones begin."""
        self._tokens -= tokens
        while self._waiting and self._has_room(self._waiting[0][0]):
            tokens, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._tokens += tokens
                turn.set_result(None)

    def _has_room(self, tokens: int) -> bool:
        return self._tokens + tokens <= self._max_tokens
