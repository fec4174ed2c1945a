"""HTTP/1.1 on a connection: uvicorn's parser, bounded.

uvicorn bounds neither a request's head nor how long a client takes to read its answer.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.call import choose_request_id
from service.problems import ProblemError, problem_response

MAX_HEAD_BYTES = 2**16
"""Of request line and headers, and of what stands between a body's chunks; one read from the socket may pass it."""
INTERIM = b"HTTP/1.1 1"
"""What an answer that only tells the client to go on begins with: a body is awaited then."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its own refusals are problems with an id, like all others."""

    answer_timeout_s = 30.0
    """A client that has not taken what was written for it after so long loses the connection."""
    _unbounded = 0
    """Bytes since the last that were part of a body, or since the head was complete."""
    _giving_up: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse a head that goes on and on."""
        self._unbounded += len(data)
        super().data_received(data)
        if self._unbounded > MAX_HEAD_BYTES and not self.transport.is_closing():
            detail = f"the request's headers are over {MAX_HEAD_BYTES} bytes"
            self._refuse(ProblemError(431, "headers-too-large", detail))

    def on_headers_complete(self) -> None:
        """Start counting anew."""
        self._unbounded = 0
        super().on_headers_complete()
        if self.cycle is not None:  # none where the client asks for another protocol
            OneWrite.put_before(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Count no byte of a body: its own limit is looked at where it is read."""
        self._unbounded = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start counting anew."""
        self._unbounded = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(ProblemError(400, "malformed-http", msg))

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read."""
        super().pause_writing()
        self._giving_up = self.loop.call_later(self.answer_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting: the client reads."""
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _refuse(self, problem: ProblemError) -> None:
        """Write the answer and close; while another answer is under way only close."""
        if self.cycle is None or self.cycle.response_complete:
            request_id = choose_request_id(None)
            answer = problem_response(problem, request_id)
            head = [
                f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}".encode(),
                *(name + b": " + value for name, value in answer.raw_headers),
                b"x-request-id: " + request_id.encode(),
                b"connection: close",
            ]
            self.transport.write(b"\r\n".join([*head, b"", bytes(answer.body)]))
        self.transport.close()


class OneWrite:
    """An answer's way to its connection: the head waits for the first part of the body, and both leave together.

    uvicorn writes them one after the other, and each write wakes the client.
    """

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
        self._on_response()

    def close(self) -> None:
        """Write what is held, and close the connection."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Tell whether the connection ends."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._head = None
