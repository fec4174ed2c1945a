"""HTTP/1.1 on a connection: uvicorn's protocol with limits.

uvicorn limits neither the size of a request's head, nor the time it takes to arrive, nor the number of pipelined requests.
"""

import asyncio
import re
import time
from collections import deque
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.limits import BodyBudget, UnsentResponses
from service.http.lingering import LingeringProtocol
from service.http.middleware import BEGAN, UNCOUNTED, choose_request_id
from service.http.problems import ProblemError, problem_response
from service.http.request_body import BODY_ERROR
from service.http.request_log import RequestLog
from service.metrics import Metrics
from service.pipeline.inputs import RequestContext

MAX_HEAD_BYTES = 2**16
"""Maximum bytes of request line and headers, or between the chunks of a body."""
MAX_PIPELINED = 16
"""Maximum requests that wait on a connection behind an earlier one."""
PARSED_AT_ONCE_BYTES = 2**16
"""Bytes parsed in one turn of the event loop; 256 KiB of one-byte chunks would take 30 ms."""
RESERVED_CONNECTIONS = 32
"""Connections beyond `max_connections` that may request /health and /metrics."""
RESERVED_TIMEOUT_S = 2.0
"""Seconds that such a connection has for its head."""
HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
"""Characters of a host and port (RFC 3986, 3.2.2), except the comma, which would separate several hosts."""


class BoundedProtocol(LingeringProtocol):
    """One connection. Its own errors are problems with a request id, like all others."""

    metrics: Metrics
    """Metrics in which connections and refused requests are counted."""
    bodies: BodyBudget
    unsent: UnsentResponses
    """Bound on what is received and not yet read, and on what requests have read."""
    request_log: RequestLog
    max_connections = 900
    """Maximum connections; those beyond get a 503, except for /health and /metrics."""
    head_timeout_s = 10.0
    """Seconds for a head to arrive after its first byte, and for the rest of a request that was answered early."""
    _unbounded = 0
    """Bytes since the end of the last head or body part."""
    _unparsed = b""
    """Received bytes that are parsed in later turns of the event loop."""
    _is_held = False
    """True while reading is paused for `_unparsed`."""
    _is_deaf = False
    """True once all further bytes are discarded, after an error."""
    _refusal: ProblemError | None = None
    """Error to send after the responses to earlier requests."""
    _arrival: asyncio.TimerHandle | None = None
    """Timer for the rest of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request; refuse or limit connections beyond `max_connections`."""
        super().connection_made(transport)
        host, port = self.client or ("unix", 0)
        self.client = host.removeprefix("::ffff:"), port  # IPv4 at a socket for both
        self.metrics.open_connections.set(len(self.connections))
        self._open = deque[RequestResponseCycle]()
        self._buffer = self.bodies.share()
        self.unsent.transports.add(transport)
        excess = len(self.connections) - self.max_connections
        self._is_excess = excess > 0
        if excess > RESERVED_CONNECTIONS:
            self._respond(self._too_many_connections())
            self.end()
        elif self._is_excess:
            self.head_timeout_s = min(self.head_timeout_s, RESERVED_TIMEOUT_S)
            self._wait_for_request(self.head_timeout_s)
        else:
            self._wait_for_request(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, in parts so that other connections get their turns."""
        if self._is_deaf or self.is_closing():
            self.discard(len(data))
            return
        is_scheduled = bool(self._unparsed)
        self._unparsed += data
        try:
            self._count_buffer()
        except ProblemError as problem:
            self._refuse(problem)
        else:
            if not is_scheduled:
                self._parse()

    def on_message_begin(self) -> None:
        """Note that a request has begun; line ends between requests do not begin one."""
        self._has_begun = True
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self.scope["state"][BEGAN] = time.monotonic()

    def on_headers_complete(self) -> None:
        """Check the head and start the request."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # parsed again without its Upgrade header
        self._check_head()
        self._stop_arrival()
        self._unset_keepalive_if_required()
        super().on_headers_complete()  # raises if the target is no path: the head's error, as there is no cycle yet
        self._unbounded, self._in_head = 0, False
        self.cycle.transport = cast(asyncio.Transport, self)  # for its `close`
        self.cycle.keep_alive = self.cycle.keep_alive and not self._is_excess
        self._open.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Do not count a body's bytes: whoever reads the body limits them."""
        self._unbounded = 0
        if self.cycle.response_complete:
            self.discard(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next request."""
        if self._in_head:
            return  # of a request that offers another protocol
        self._unbounded, self._in_head, self._has_begun = 0, True, False
        super().on_message_complete()
        if self.cycle.response_complete:
            self._stop_arrival()
            self._wait_for_request(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Continue with the next request, or with the error of what came instead."""
        if self._open:
            self._open.popleft()
        self._count_buffer()
        super().on_response_complete()
        if self.is_closing() or self._open:
            return
        if self._refusal is not None:
            self._respond(self._refusal)
            self.close()
        elif self._has_begun or not self._in_head:  # more of a request is to come
            self._unset_keepalive_if_required()
            self._await_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, and notify the running request; uvicorn notifies only the last of a pipeline."""
        super().connection_lost(exc)
        self.unsent.transports.discard(self.transport)
        self.metrics.open_connections.set(len(self.connections))
        self._stop_arrival()
        for cycle in self._open:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unparsed = b""
        self._buffer.hold(0)
        self._open.clear()  # break the reference cycle with this connection
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]

    def may_receive_more(self) -> bool:
        """Tell whether a request is incomplete, or received bytes are unparsed or discarded."""
        return super().may_receive_more() or self._is_deaf or bool(self._unparsed)

    def _parse(self) -> None:
        """Parse part of what was received, and schedule the rest."""
        part, self._unparsed = self._unparsed[:PARSED_AT_ONCE_BYTES], self._unparsed[PARSED_AT_ONCE_BYTES:]
        if self._is_deaf or self.is_closing():
            return
        self._unbounded += len(part)
        try:
            self._feed(part)
            if self._unbounded > MAX_HEAD_BYTES:
                raise _headers_too_large()
            self._count_buffer()  # no more than before: readers have taken some
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request; what its handler reads is no longer counted here, as the handler counts it."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            async def counted() -> Message:
                message = await receive()
                self._count_buffer()
                return message

            await app(scope, counted, send)

        super()._start_asgi_task(cycle, counting)  # type: ignore[arg-type]

    def _count_buffer(self) -> None:
        """Count the bytes that wait in this connection. Raises the 503 of too much that all bodies hold."""
        self._buffer.hold(len(self._unparsed) + sum(len(cycle.body) for cycle in self._open))

    def _feed(self, data: bytes) -> None:
        """Feed the parser; a request that offers another protocol is parsed again without its Upgrade header.

        The parser would take the body for that protocol. A server may ignore the offer (RFC 9110, 7.8); curl and Java's
        client offer h2c with a plain POST.
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
        """Return the head just parsed, without its Upgrade header."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_head(self) -> None:
        """Raise the error of a head that is not accepted."""
        if self.parser.get_method() == b"CONNECT":
            raise ProblemError(400, "malformed-http", "CONNECT asks for a proxy, and this is none")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise _headers_too_large()  # its end came with the bytes that exceed the limit
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
        """Respond with an error after the responses to earlier requests, and close.

        The error of a body is passed to the handler that reads it.
        """
        self._is_deaf, self._unparsed = True, b""
        self._count_buffer()
        if not self._in_head:
            self.cycle.scope["state"][BODY_ERROR] = problem
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
            if self.cycle.response_complete:
                self.close()
        elif self._open:
            self._refusal = problem
        else:
            self._respond(problem)
            self.close()

    def _respond(self, problem: ProblemError) -> None:
        """Write an error response without a handler."""
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
        now = time.monotonic()
        context = RequestContext(request_id, "connection", now, began=now)
        scope: Scope = {"method": "", "client": self.client, "state": {}}
        self.request_log.write(scope, context, problem.status, problem)

    def _wait_for_request(self, seconds: float) -> None:
        """Close the connection unless a request begins in time."""
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _await_arrival(self) -> None:
        self._stop_arrival()
        self._arrival = self.loop.call_later(self.head_timeout_s, self._too_late)

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _too_late(self) -> None:
        """Refuse a request that does not arrive, unless an earlier one is still running."""
        self._arrival = None
        if not self._in_head:
            self.end()
        elif not self._open and not self.is_closing():
            detail = f"the request's head had not arrived after {self.head_timeout_s:g} s (body_timeout_ms)"
            self._refuse(ProblemError(408, "body-timeout", detail))


def _headers_too_large() -> ProblemError:
    return ProblemError(431, "headers-too-large", f"the request's headers are over {MAX_HEAD_BYTES} bytes")


def _problem_of(error: httptools.HttpParserError) -> ProblemError:
    """Return the problem of a parser's error; an error raised by a callback is its context."""
    if isinstance(error.__context__, ProblemError):
        return error.__context__
    reason = (
        "the request's target is no path"
        if isinstance(error, httptools.HttpParserCallbackError)
        else str(error)
    )
    return ProblemError(400, "malformed-http", f"this is not HTTP/1.1: {reason}")
