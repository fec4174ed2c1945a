"""HTTP/1.1 on a connection: uvicorn's parser, bounded.

uvicorn bounds neither a request's head, nor how long it takes to arrive, nor how many requests are pipelined.
"""

import asyncio
import re
import select
import time
from collections import deque
from http import HTTPStatus
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.lingering import LingeringProtocol
from service.http.middleware import UNCOUNTED
from service.http.problems import ProblemError, problem_response
from service.http.request_body import BODY_ERROR
from service.metrics import Metrics
from service.pipeline.request_context import BEGAN, choose_request_id

LAST_REQUEST_S = 1.0
"""A service that stops waits so long for a request that was sent before the client could know."""
MAX_HEAD_BYTES = 2**16
"""Of request line and headers, and of what stands between a body's chunks; one read from the socket may pass it."""
MAX_PIPELINED = 16
"""Requests that wait on a connection while an earlier one is answered."""
PARSED_AT_ONCE_BYTES = 2**16
"""Bytes that are parsed in one turn of the event loop: 256 KiB of one-byte chunks would take 30 ms."""
RESERVED_CONNECTIONS = 32
"""Connections past `max_connections` that may still ask for /health and /metrics."""
RESERVED_TIMEOUT_S = 2.0
"""Time that such a connection has for its head."""
HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
"""Characters of a host and port (RFC 3986, 3.2.2); a comma, which is allowed there, would be a list of hosts here."""


class BoundedProtocol(LingeringProtocol):
    """One connection. Its own refusals are problems with an id, like all others."""

    metrics: Metrics
    """Counts the refusals."""
    max_connections = 900
    """Connections that are served; those past it get a 503, except for /health and /metrics."""
    head_timeout_s = 10.0
    """Time for a head to arrive from its first byte on, and for the rest of a request that was answered."""
    _unbounded = 0
    """Bytes since the last that were part of a body, or since the head was complete."""
    _in_head = True
    """True unless the next byte belongs to a body."""
    _has_begun = False
    """Whether a byte of the next request has come."""
    _unparsed = b""
    """Received bytes that are parsed in the loop's next turns."""
    _is_held = False
    """True while reading is paused until `_unparsed` is empty."""
    _is_deaf = False
    """True once all further bytes are discarded."""
    _refusal: ProblemError | None = None
    """Answers what cannot be parsed, after the requests before it."""
    _arrival: asyncio.TimerHandle | None = None
    """Ends the wait for what the client still has to send."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first byte as long as for the next request; keep those past the bound short."""
        super().connection_made(transport)
        self._open = deque[RequestResponseCycle]()
        excess = len(self.connections) - self.max_connections
        self._is_excess = excess > 0
        if excess > RESERVED_CONNECTIONS:
            self._answer(self._too_many_connections())
            self.end()
        elif self._is_excess:
            self.head_timeout_s = min(self.head_timeout_s, RESERVED_TIMEOUT_S)
            self._wait_for_request(self.head_timeout_s)
        else:
            self._wait_for_request(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, in parts that let other connections have their turns."""
        if self._is_deaf or self.is_closing():
            self.discard(len(data))
            return
        is_scheduled = bool(self._unparsed)
        self._unparsed += data
        if not is_scheduled:
            self._parse()

    def on_message_begin(self) -> None:
        """Note that it has begun; line ends between requests do not begin one."""
        self._has_begun = True
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self.scope["state"][BEGAN] = time.monotonic()

    def on_headers_complete(self) -> None:
        """Check the head, and start counting anew."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # it is parsed again without the offer
        self._check_head()
        self._unbounded, self._in_head = 0, False
        self._stop_arrival()
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self.cycle.transport = cast(asyncio.Transport, self)  # for `close`
        self.cycle.keep_alive = self.cycle.keep_alive and not self._is_excess
        self._open.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Count no byte of a body: its own limit is looked at where it is read."""
        self._unbounded = 0
        if self.cycle.response_complete:
            self.discard(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start counting anew."""
        if self._in_head:
            return  # of an offer to speak another protocol
        self._unbounded, self._in_head, self._has_begun = 0, True, False
        super().on_message_complete()
        if self.cycle.response_complete:
            self._stop_arrival()
            self._wait_for_request(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Go on with the next request, or with the refusal of what came instead of one."""
        if self._open:
            self._open.popleft()
        super().on_response_complete()
        if self.is_closing() or self._open:
            return
        if self._refusal is not None:
            self._answer(self._refusal)
            self.close()
        elif self._has_begun or not self._in_head:  # more of a request is on its way
            self._unset_keepalive_if_required()
            self._await_arrival()

    def shutdown(self) -> None:
        """Close the connection when nothing can be under way: a client may just be sending its next request.

        The answer to that says that the connection closes.
        """
        if self._is_idle():
            self.loop.call_later(LAST_REQUEST_S, self._close_if_idle)
        else:
            super().shutdown()

    def _is_idle(self) -> bool:
        """Tell whether there is no request, and none has begun."""
        return (self.cycle is None or self.cycle.response_complete) and self._in_head and not self._has_begun

    def _close_if_idle(self) -> None:
        if self.is_closing() or not self._is_idle():
            return
        unread = select.poll()  # select() takes no descriptor over 1023
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        if unread.poll(0):
            self.loop.call_soon(self._close_if_idle)  # it is read first
        else:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, and tell the request that is running, which uvicorn does only for the last of a pipeline."""
        super().connection_lost(exc)
        self._stop_arrival()
        for cycle in self._open:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unparsed = b""
        self._open.clear()  # they know this connection, and nothing but a collector would free the two
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]

    def may_receive_more(self) -> bool:
        """Tell whether a request is incomplete, or what follows was not looked at."""
        return self._has_begun or not self._in_head or self._is_deaf or bool(self._unparsed)

    def _parse(self) -> None:
        """Parse a part of what was received, and the rest in later turns."""
        part, self._unparsed = self._unparsed[:PARSED_AT_ONCE_BYTES], self._unparsed[PARSED_AT_ONCE_BYTES:]
        if self._is_deaf or self.is_closing():
            return
        self._unbounded += len(part)
        try:
            self._feed(part)
            if self._unbounded > MAX_HEAD_BYTES:
                detail = f"the request's headers are over {MAX_HEAD_BYTES} bytes"
                raise ProblemError(431, "headers-too-large", detail)
        except httptools.HttpParserError as error:
            self._refuse(_problem_of(error))
        except ProblemError as problem:
            self._refuse(problem)
        if self._is_deaf or self.is_closing():
            return
        if self._has_begun and self._in_head and self._arrival is None:
            self._await_arrival()
        if self._unparsed:
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif self._is_held and not self.flow.read_paused:
            self.transport.resume_reading()
        self._is_held = bool(self._unparsed)

    def _feed(self, data: bytes) -> None:
        """Let the parser have the data; a request that offers to speak another protocol is parsed again without the offer.

        The parser would take its body for that protocol. A server that does not speak it answers in HTTP/1.1 (RFC 9110,
        7.8); curl and Java's client offer h2c with a plain POST.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        """Return the head that was just parsed, without its Upgrade header."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_head(self) -> None:
        """Raise the refusal of a head, before anything is begun for it."""
        if self.parser.get_method() == b"CONNECT":
            raise ProblemError(400, "malformed-http", "CONNECT asks for a proxy, and this is none")
        hosts = [value for name, value in self.headers if name == b"host"]
        is_missing = not hosts and self.parser.get_http_version() != "1.0"
        if is_missing or len(hosts) > 1 or not all(map(HOST.fullmatch, hosts)):
            detail = "a request needs exactly one Host header, with a host and no more (RFC 9112, 3.2)"
            raise ProblemError(400, "malformed-http", detail)
        if len(self._open) > MAX_PIPELINED:
            detail = f"over {MAX_PIPELINED} pipelined requests wait on this connection; wait for responses"
            raise ProblemError(
                429, "too-many-pipelined", detail, headers={"Retry-After": "1"}, reason="too_many_pipelined"
            )
        if self._is_excess and self.url.partition(b"?")[0].decode("latin-1") not in UNCOUNTED:
            raise self._too_many_connections()

    def _too_many_connections(self) -> ProblemError:
        detail = f"over {self.max_connections} connections are open (max_connections); try again in 1 s"
        return ProblemError(
            503, "too-many-connections", detail, headers={"Retry-After": "1"}, reason="too_many_connections"
        )

    def _refuse(self, problem: ProblemError) -> None:
        """Answer what cannot be a request, after the requests before it, and close.

        What is wrong with a body is for its handler to say.
        """
        self._is_deaf, self._unparsed = True, b""
        if not self._in_head:
            self.cycle.scope["state"][BODY_ERROR] = problem
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
            if self.cycle.response_complete:
                self.close()
        elif self._open:
            self._refusal = problem
        else:
            self._answer(problem)
            self.close()

    def _answer(self, problem: ProblemError) -> None:
        """Write a response that no handler makes."""
        if problem.reason:
            self.metrics.requests_rejected.labels(problem.reason).inc()
        request_id = choose_request_id(None)
        response = problem_response(problem, request_id)
        head = [
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}".encode(),
            *(name + b": " + value for name, value in response.raw_headers),
            b"x-request-id: " + request_id.encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))

    def _wait_for_request(self, seconds: float) -> None:
        """Close the connection unless a request begins in time; line ends do not begin one."""
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _await_arrival(self) -> None:
        self._stop_arrival()
        self._arrival = self.loop.call_later(self.head_timeout_s, self._too_late)

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _too_late(self) -> None:
        """Give up a request that does not arrive, but not while an earlier one is answered."""
        self._arrival = None
        if not self._in_head:
            self.end()
        elif not self._open and not self.is_closing():
            detail = f"the request's head had not arrived after {self.head_timeout_s:g} s (body_timeout_ms)"
            self._refuse(ProblemError(408, "body-timeout", detail))


def _problem_of(error: httptools.HttpParserError) -> ProblemError:
    """Return what a parser's error tells the client; what a callback raised is its context."""
    if isinstance(error.__context__, ProblemError):
        return error.__context__
    reason = (
        "the request's target is no path"
        if isinstance(error, httptools.HttpParserCallbackError)
        else str(error)
    )
    return ProblemError(400, "malformed-http", f"this is not HTTP/1.1: {reason}")
