"""An answer's head and the first part of its body, in one write: uvicorn makes two, and each wakes the client."""

import asyncio
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

INTERIM = b"HTTP/1.1 1"
"""What an answer that only tells the client to go on begins with: a body is awaited then."""


def _nothing() -> None:
    """Do so."""


class OneWrite:
    """An answer's way to its connection: the head waits for the first part of the body, and both leave together."""

    __slots__ = ("_head", "_on_response", "_transport")

    def __init__(self, transport: asyncio.Transport, on_response: Callable[[], None]) -> None:
        """Nothing is held yet."""
        self._transport, self._on_response = transport, on_response
        self._head: bytes | None = b""

    @classmethod
    def put_before(cls, cycle: RequestResponseCycle) -> None:
        """Let an answer that has not begun go this way."""
        whole = cls(cycle.transport, cycle.on_response)
        cycle.transport, cycle.on_response = cast(asyncio.Transport, whole), whole.complete

    def write(self, data: bytes) -> None:
        """Hold the answer's head; write it with what comes after it; write all else as it comes."""
        if self._head is None or data.startswith(INTERIM):
            self._transport.write(data)
        elif self._head:
            self._transport.write(self._head + data)
            self._head = None
        else:
            self._head = data

    def complete(self) -> None:
        """Write what is held, for an answer without a body, and tell that the answer is whole."""
        self._flush()
        on_response, self._on_response = self._on_response, _nothing
        on_response()

    def close(self) -> None:
        """Write what is held, and close the connection."""
        if not self._transport.is_closing():
            self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Tell whether the connection ends."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._head = None
