"""HTTP/1.1 on a connection: uvicorn's parser, bounded.

uvicorn bounds neither a request's head, nor how long it takes to arrive, nor how long a client takes to read its answer.
"""

import asyncio
import re
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.call import choose_request_id
from service.one_write import OneWrite
from service.problems import ProblemError, problem_response

MAX_HEAD_BYTES = 2**16
"""Of request line and headers, and of what stands between a body's chunks; one read from the socket may pass it."""
UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its own refusals are problems with an id, like all others."""

    answer_timeout_s = 30.0
    """A client that has not taken what was written for it after so long loses the connection."""
    head_timeout_s = 10.0
    """A head that has begun must have arrived after so long, and so must the rest of a request that was answered."""
    _unbounded = 0
    """Bytes since the last that were part of a body, or since the head was complete."""
    _in_head = True
    _has_begun = False
    """Whether a byte of the next request has come."""
    _end_of_head = b""
    """The last bytes of a head that is not complete: its end may be half in them."""
    _giving_up: asyncio.TimerHandle | None = None
    _late: asyncio.TimerHandle | None = None
    _watched = False
    _cycles: tuple[RequestResponseCycle, ...] = ()
    """Of the requests that are not answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first byte as long as for the next request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(self.timeout_keep_alive, self._silent)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse a head that goes on and on."""
        self._unbounded += len(data)
        super().data_received(without_upgrade(data, self._end_of_head) if self._in_head else data)
        self._end_of_head = (self._end_of_head + data)[-3:] if self._in_head and self._has_begun else b""
        if self.transport.is_closing():
            return
        if self._unbounded > MAX_HEAD_BYTES:
            detail = f"the request's headers are over {MAX_HEAD_BYTES} bytes"
            self._refuse(ProblemError(431, "headers-too-large", detail))
        elif self._late is not None or self._is_unfinished():
            self._watch_arrival()

    def on_message_begin(self) -> None:
        """Note that it has begun; line ends between requests do not begin one."""
        self._has_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start counting anew."""
        self._unbounded, self._in_head = 0, False
        super().on_headers_complete()
        OneWrite.put_before(self.cycle)
        self._cycles = (*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle)

    def on_body(self, body: bytes) -> None:
        """Count no byte of a body: its own limit is looked at where it is read."""
        self._unbounded = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start counting anew."""
        self._unbounded, self._in_head, self._has_begun = 0, True, False
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
        """Clean up, and tell every request that nobody waits for it: uvicorn tells the last."""
        self._stop_waiting()
        if self._late is not None:
            self._late.cancel()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles = ()  # they know this connection, and nothing but a collector would free the two
        super().connection_lost(exc)

    def _is_unfinished(self) -> bool:
        """Tell whether a head has begun, or a body still arrives whose request was answered."""
        return self._has_begun if self._in_head else self.cycle.response_complete

    def _watch_arrival(self) -> None:
        """Give what is unfinished its time, from its first byte on."""
        is_unfinished = self._is_unfinished()
        if is_unfinished and self._watched:
            return
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self.head_timeout_s, self._too_late) if is_unfinished else None
        self._watched = is_unfinished

    def _silent(self) -> None:
        """Close a connection that never sent anything."""
        self._late = None
        self.transport.close()

    def _too_late(self) -> None:
        """Give up a request that does not arrive, but not while an earlier one is answered."""
        self._late, self._watched = None, False
        if any(not cycle.response_complete for cycle in self._cycles):
            self._watch_arrival()
        elif self._in_head:
            detail = f"the request's head had not arrived after {self.head_timeout_s:g} s (body_timeout_ms)"
            self._refuse(ProblemError(408, "body-timeout", detail))
        else:
            self.transport.close()

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


def without_upgrade(data: bytes, before: bytes = b"") -> bytes:
    """Rename a head's offer to speak another protocol: here is none, and the parser would take the body for it.

    A server answers in HTTP/1.1 then (RFC 9110, 7.8); curl and Java's client offer h2c with a plain POST. `before` are the
    last bytes of the head that came already.
    """
    end = (before + data).find(b"\r\n\r\n") - len(before)
    found = UPGRADE.search(data, 0, max(0, end) if end >= -len(before) else len(data))
    return data if found is None else data[: found.start()] + b"\r\nx-upgrade:" + data[found.end() :]
