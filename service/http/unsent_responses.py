"""A bound on the bytes of responses that a process has made and clients have not read."""

from asyncio import WriteTransport
from collections.abc import Iterator
from contextlib import contextmanager

from service.http.problems import ProblemError

RESPONSES_FULL = "responses-full"
"""Code of the problem of a process whose clients leave too much unread."""
LARGEST_RESPONSES = 8
"""Bound of what all clients may leave unread, in responses of the largest size."""


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
