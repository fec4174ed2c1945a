"""Request id, API key, timing headers, metrics, problem+json and log line of every request."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert.errors import NotReadyError
from service.http.authorise import Authorisation
from service.http.lifecycle import ANSWERED_LINES, Service
from service.http.limits import BODY_SHARE
from service.http.problems import (
    CLIENT_GONE,
    ERROR_WRITER,
    ClientGoneError,
    ErrorWriter,
    ProblemError,
    rate_headers,
)
from service.http.request_body import header
from service.pipeline.inputs import RequestContext

UNCOUNTED = frozenset({"/health/live", "/health/ready", "/metrics"})
"""Paths that monitoring asks; they are not counted as requests in flight."""
BEGAN = "began"
"""Key in a request's state under which the server stores the arrival of its first byte, on `time.monotonic`."""
VALID_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
PHASES = ("tokenize", "queue", "inference", "decode")
PROBLEM = "problem"
"""Key in a request's state for the problem that it ended with."""

RecordSpans = Callable[[Scope, RequestContext, str, int, ProblemError | None, int | None], None]
"""Gets a finished request's scope and context, its route or "", its status, its problem, and how many lines it had."""


class RequestMiddleware:
    """ASGI middleware around the whole router; turns every error into a response."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        paths: frozenset[str],
        error_writer: Callable[[str], ErrorWriter],
        is_hidden: Callable[[Scope], bool],
        needs_no_key: Callable[[Scope], bool],
        record_spans: RecordSpans | None,
        keys: Authorisation,
    ) -> None:
        """Wrap `app`.

        `paths` are the known paths; metrics label any other by its route's pattern, or as "other". `error_writer` returns
        what writes the errors of a path, `is_hidden` tells whether only the other port has a request's path, `needs_no_key`
        whether it needs no key, and `record_spans` gets each finished request but those to UNCOUNTED; `keys` are in force.
        """
        self._app, self._service, self._paths = app, service, paths
        self._metrics, self._settings = service.metrics, service.settings
        self._root = f"{self._settings.root_path}/" if self._settings.root_path else ""
        self._bodies, self._is_stopping = service.bodies, service.is_stopping
        self._error_writer, self._is_hidden, self._needs_no_key = error_writer, is_hidden, needs_no_key
        self._record_spans = record_spans
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = str(scope["method"]), str(scope["path"])
        scope = _as_get(scope)
        if self._root and path.startswith(self._root):
            path = path[len(self._root) - 1 :]
            scope = {**scope, "path": path}
        state = scope.setdefault("state", {})
        context = RequestContext(choose_request_id(header(scope, b"x-request-id")), path, time.monotonic())
        context.began = state.get(BEGAN, context.received)
        state["context"], state[BODY_SHARE] = context, self._bodies.share()
        responder = _Responder(send, context, self._is_stopping)
        counted, entered = path not in UNCOUNTED, None
        if counted:
            self._metrics.requests_in_flight.inc()
        try:
            if self._is_hidden(scope):  # whatever the method and the key
                raise ProblemError(404, "http", "this path is on the admin port only (admin_port)")
            if self._keys.needs_key and not self._needs_no_key(scope):
                grant = context.grant = await self._keys.grant(scope)
                grant.enter()
                entered = grant
            await self._app(scope, receive, responder.send)
        except Exception as error:
            await self._refuse(error, context, responder, scope, receive)
        except asyncio.CancelledError:  # the server's time to stop is over
            await self._refuse(NotReadyError("the service is stopping"), context, responder, scope, receive)
        finally:
            state[BODY_SHARE].hold(0)
            if entered is not None:
                entered.leave()
            self._record(context, responder.status or CLIENT_GONE, {**scope, "method": method})
            state.pop(PROBLEM, None)  # its traceback leads back here: a cycle would keep the body
            if counted:  # last: where none is in flight, all are recorded
                self._metrics.requests_in_flight.dec()

    async def _refuse(
        self,
        error: Exception,
        context: RequestContext,
        responder: "_Responder",
        scope: Scope,
        receive: Receive,
    ) -> None:
        """Respond with a problem, unless the client left or a response was begun."""
        if isinstance(error, ClientGoneError):
            self._metrics.requests_rejected.labels("client_gone").inc()
            return
        problem = self._service.count_problem(error, asks_for_result=scope["method"] == "POST")
        scope["state"][PROBLEM] = problem
        if responder.status == 0:
            write = scope["state"].get(ERROR_WRITER) or self._error_writer(context.endpoint)
            await write(problem, context.request_id)(scope, receive, responder.send)

    def _record(self, context: RequestContext, status: int, scope: Scope) -> None:
        """Record metrics and the log line of a finished request; the lines of a stream have recorded theirs."""
        state = scope["state"]
        lines, problem = state.get(ANSWERED_LINES), state.get(PROBLEM)
        route = context.endpoint
        if route not in self._paths:
            route = getattr(scope.get("route"), "path", "other")
        if lines is None:
            self._service.record(context, route, status)
        if self._record_spans is not None and context.endpoint not in UNCOUNTED:
            self._record_spans(scope, context, "" if route == "other" else route, status, problem, lines)
        if self._settings.access_log or context.endpoint not in UNCOUNTED:  # a probe's 503 is its answer
            more = {} if lines is None else {"lines": lines}
            self._service.request_log.write(scope, context, status, problem, **more)


def choose_request_id(sent: str | None) -> str:
    """Return the client's id if it is safe in headers and logs, else a new one."""
    return sent if sent and VALID_ID.fullmatch(sent) else secrets.token_hex(8)


def _server_timing(context: RequestContext) -> str:
    """Return the Server-Timing header: milliseconds by phase, and the total so far."""
    seconds, total = context.seconds, time.monotonic() - context.received
    parts = [f"{phase};dur={1000 * seconds[phase]:.3f}" for phase in PHASES if phase in seconds]
    return ", ".join([*parts, f"total;dur={1000 * total:.3f}"])


def _as_get(scope: Scope) -> Scope:
    """Treat HEAD as GET; the server omits the body (RFC 9110, 9.3.2)."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


class _Responder:
    """Adds the common headers to a response and remembers its status."""

    def __init__(self, send: Send, context: RequestContext, is_stopping: Callable[[], bool]) -> None:
        self._send, self._context, self._is_stopping = send, context, is_stopping
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            own = [
                (b"x-request-id", self._context.request_id.encode()),
                (b"server-timing", _server_timing(self._context).encode()),
            ]
            if version := self._context.version:
                own.append((b"x-model-version", quote(version).encode()))
            grant = self._context.grant
            if grant is not None and self.status != 429 and (left := grant.requests_left()) is not None:
                own += [
                    (name.lower().encode(), value.encode()) for name, value in rate_headers(*left).items()
                ]
            if self._is_stopping():  # the next request should reach another instance
                own.append((b"connection", b"close"))
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)
