"""Log lines of requests: those that failed, at a bounded rate, and with `access_log` all. They hold no texts."""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from service.http.problems import CLIENT_GONE, ProblemError
from service.logs import LOGGER
from service.pipeline.inputs import RequestContext

MAX_FAILED_PER_S = 20
"""Lines of failed requests that a process writes in a second at each level; the rest is counted in one line."""
MAX_PATH = 200
"""Longest path in a line, in characters."""
MAX_CLIENT = 64
"""Longest client in a line, in characters; a trusted proxy may pass on what a client made up in X-Forwarded-For."""
ALWAYS = "logged"
"""Key in a request's state: it has a line also where it succeeded, as what changes the models."""
CAPACITY = frozenset({429, 503, 504})
"""Statuses that tell of too much work or of models that are away: a warning."""
DETAILED = CAPACITY | {413}
"""Statuses whose details never repeat what the client sent."""

TRACE_PARENT = re.compile(
    rb"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?"
)


class TraceParent(NamedTuple):
    """Trace id and sampling flag of a request's `traceparent` header (W3C Trace Context)."""

    trace_id: str
    is_sampled: bool


def trace_parent(scope: Mapping[str, Any]) -> TraceParent | None:
    """Return the trace that a request belongs to, None if it says none."""
    sent = next((value for name, value in scope.get("headers", ()) if name == b"traceparent"), b"")
    found = TRACE_PARENT.fullmatch(sent)
    return TraceParent(found[1].decode(), bool(int(found[2], 16) & 1)) if found else None


class RequestLog:
    """Writes the lines of one process."""

    def __init__(self, *, logs_all: bool) -> None:
        """`logs_all` asks for a line for each request; then the rate is not bounded."""
        self._logs_all = logs_all
        self._failed = Counter[int]()
        """Failed requests of this second, by level."""

    def write(
        self,
        scope: Mapping[str, Any],
        context: RequestContext,
        status: int,
        problem: ProblemError | None = None,
        **more: object,
    ) -> None:
        """Write the line of a finished request, if it failed or all are logged."""
        outcome = problem.status if problem is not None else status
        has_failed = outcome >= 400
        is_guess = (
            problem is not None and problem.reason == "wrong_keys"
        )  # must not take the room of warnings
        level = logging.INFO if is_guess else _level(outcome)
        is_wanted = (
            self._logs_all or scope.get("state", {}).get(ALWAYS) or (has_failed and self._has_room(level))
        )
        if not LOGGER.isEnabledFor(level) or not is_wanted:
            return
        message = f"{scope['method']} {_loggable(context.endpoint)}".lstrip()
        if problem is not None and outcome in DETAILED:
            message += f": {problem.detail}"
        error = problem.__cause__ if problem is not None and outcome == 500 else None
        fields = {**_fields(scope, context, status, problem), **more}
        LOGGER.log(level, "%s", message, exc_info=error, extra={"fields": fields})

    def _has_room(self, level: int) -> bool:
        """Count a failed request; tell whether this second has room for its line."""
        if not self._failed:
            asyncio.get_running_loop().call_later(1.0, self._end_second)
        self._failed[level] += 1
        return self._failed[level] <= MAX_FAILED_PER_S

    def _end_second(self) -> None:
        """Say how many lines were left out."""
        for level, count in self._failed.items():
            if (left_out := count - MAX_FAILED_PER_S) > 0:
                fields = {"left_out": left_out}
                LOGGER.log(
                    level, "more requests failed in this second, without lines", extra={"fields": fields}
                )
        self._failed.clear()


def _level(status: int) -> int:
    if status < 500 and status not in CAPACITY:
        return logging.INFO
    return logging.WARNING if status in CAPACITY else logging.ERROR


def _fields(
    scope: Mapping[str, Any], context: RequestContext, status: int, problem: ProblemError | None
) -> dict[str, object]:
    client = scope.get("client")
    parent = trace_parent(scope)
    named = {
        "trace_id": context.trace_id or (parent.trace_id if parent else ""),
        "reason": "client-gone" if status == CLIENT_GONE else problem.code if problem is not None else "",
        "version": context.version,
        "key": context.grant.name if context.grant is not None else "",
        "client": quote(client[0][:MAX_CLIENT], safe=":.%") if client else "",
    }
    return {
        "request_id": context.request_id,
        "status": status,
        "model": context.model,
        "tokens": context.tokens,
        "ms": round(1000 * (time.monotonic() - context.began), 2),
        **{f"{phase}_ms": round(1000 * spent, 2) for phase, spent in context.seconds.items()},
        **{name: value for name, value in named.items() if value},
    }


def _loggable(path: str) -> str:
    """Return a path without line ends, terminal control sequences or excess length."""
    return quote(path[:MAX_PATH])
