"""Around every request: id, key, timing headers, metrics, errors to problem+json, a log line."""

import asyncio
import hmac
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert.errors import NotReadyError
from service.http.headers import header
from service.http.problems import CLIENT_GONE, ClientGoneError, ProblemError, problem_of, problem_response
from service.logs import LOGGER
from service.metrics import Metrics
from service.pipeline.request_context import BEGAN, RequestContext, choose_request_id
from service.settings import ServeSettings

UNCOUNTED = frozenset({"/health/live", "/health/ready", "/metrics"})
"""Not requests in flight: what asks them is the monitoring."""
OPEN = UNCOUNTED | {"/", "/docs", "/openapi.json"}
"""Paths that need no key, with everything under /docs/."""
MAX_LOGGED = 200
"""Characters of a path in the access log."""


class RequestMiddleware:
    """ASGI middleware; the innermost of the server's own, so that no error passes it by."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        settings: ServeSettings,
        paths: frozenset[str],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`paths` are those that exist: metrics name only them, whatever clients ask for.

        While it `is_stopping` each answer says that its connection closes.
        """
        self._is_stopping = is_stopping
        self._app, self._metrics, self._settings, self._paths = app, metrics, settings, paths
        key = settings.api_key
        self._key = key.get_secret_value().encode() if key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        state = scope.setdefault("state", {})
        call = RequestContext(choose_request_id(header(scope, b"x-request-id")), path, time.monotonic())
        call.began = state.get(BEGAN, call.received)
        state["call"] = call
        answer = _Answer(send, call, self._is_stopping)
        counted = path not in UNCOUNTED
        if counted:
            self._metrics.requests_in_flight.inc()
        try:
            if self._key is not None and path not in OPEN and not path.startswith("/docs/"):
                _check_key(scope, self._key)
            await self._app(_as_get(scope), receive, answer.send)
        except Exception as error:
            await self._refuse(error, call, answer, scope, receive)
        except asyncio.CancelledError:  # the server's time to stop is over
            await self._refuse(NotReadyError("the service is stopping"), call, answer, scope, receive)
        finally:
            if counted:
                self._metrics.requests_in_flight.dec()
            self._record(call, answer.status or CLIENT_GONE, str(scope["method"]))

    async def _refuse(
        self, error: Exception, call: RequestContext, answer: "_Answer", scope: Scope, receive: Receive
    ) -> None:
        """Answer with a problem, if anyone reads it and nothing has been sent."""
        if isinstance(error, ClientGoneError):
            self._metrics.requests_rejected.labels("client_gone").inc()
            return
        problem = problem_of(error)
        if problem.reason:
            self._metrics.requests_rejected.labels(problem.reason).inc()
        if problem.status == 500:
            LOGGER.error("request failed", exc_info=error, extra={"fields": {"request_id": call.request_id}})
        if answer.status == 0:
            await problem_response(problem, call.request_id)(scope, receive, answer.send)

    def _record(self, call: RequestContext, status: int, method: str) -> None:
        """Observe the finished request."""
        seconds = time.monotonic() - call.began
        endpoint = call.endpoint if call.endpoint in self._paths else "other"
        self._metrics.request_duration.labels(endpoint, call.model, str(status)).observe(seconds)
        if "tokenize" in call.seconds:
            self._metrics.tokenize_duration.labels(call.model).observe(call.seconds["tokenize"])
        if "queue" in call.seconds:
            self._metrics.queue_duration.labels(call.model).observe(call.seconds["queue"])
            if status == HTTPStatus.OK:
                self._metrics.tokens.labels(call.model).inc(call.tokens)
        if self._settings.access_log:
            fields = {
                "request_id": call.request_id,
                "status": status,
                "model": call.model,
                "tokens": call.tokens,
                "ms": round(1000 * seconds, 2),
            }
            LOGGER.info("%s %s", method, _loggable(call.endpoint), extra={"fields": fields})


def _check_key(scope: Scope, key: bytes) -> None:
    """Raise the 401 unless the key is right.

    The comparison takes the same time for any key.
    """
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    sent = token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
    if not hmac.compare_digest(sent.encode(), key):
        detail = "send the key as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
        raise ProblemError(
            401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"}, reason="unauthorized"
        )


def _loggable(path: str) -> str:
    """Return a path as it can stand in a log: no line ends, no terminal's control sequences, no kilobytes."""
    return quote(path[:MAX_LOGGED])


def _as_get(scope: Scope) -> Scope:
    """Answer HEAD as GET: the server leaves the body out (RFC 9110, 9.3.2)."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


class _Answer:
    """The way back: adds the headers that every answer has, and remembers the status."""

    def __init__(self, send: Send, call: RequestContext, is_stopping: Callable[[], bool]) -> None:
        self._send, self._call, self._is_stopping = send, call, is_stopping
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            own = [
                (b"x-request-id", self._call.request_id.encode()),
                (b"server-timing", self._call.server_timing().encode()),
            ]
            if self._is_stopping():  # who asks again is to connect to another
                own.append((b"connection", b"close"))
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)
