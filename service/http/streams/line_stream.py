"""Answer the lines of a request as requests of their own, in order, with bounded work and memory.

The body is read as fast as it comes (`body_lines.py`). Lines are begun while the engine has room for them (`InFlightLimit`).
Their responses are written in order, no faster than the client reads.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from bert.errors import NotReadyError, QueueFullError, RateLimitedError
from service.http.lifecycle import ANSWERED_LINES, service_of
from service.http.limits import RESPONSES_FULL
from service.http.openapi import LINES_TYPE
from service.http.problems import (
    ERROR_WRITER,
    ClientGoneError,
    ErrorWriter,
    ProblemError,
    problem_of,
    problem_response,
)
from service.http.streams.body_lines import BodyLines
from service.logs import LOGGER
from service.pipeline.inputs import RequestContext

HEADERS = [(b"content-type", LINES_TYPE.encode())]
AnswerLine = Callable[[Scope, bytes], Awaitable[Response]]
"""Answers one line as the body of a request with this scope. Raises what the endpoint does."""

MAX_BEGUN_LINES = 2**10
"""Most lines that are begun and whose responses are not written."""
MAX_UNWRITTEN_BYTES = 2**20
"""Bytes of responses waiting to be written, past which no line is begun."""
WRITE_BYTES = 2**16
"""Bytes of responses that are written together."""
MIN_RETRY_S, MAX_RETRY_S = 0.02, 1.0
"""Seconds until a line that was refused because much waits is tried again."""
WATCH_S = 0.1
"""Seconds between looks at what may end a stream early."""


class LineStream:
    """One request of many lines, and its response."""

    def __init__(self, request: Request, answer: AnswerLine) -> None:
        """The request's `timeout_ms` is each line's. Raises NotReadyError, and the 415 or 505 of what is unknown."""
        if request.scope["http_version"] == "1.0":
            detail = "JSON lines need HTTP/1.1, where a response shows that it is whole (nginx: proxy_http_version 1.1)"
            raise ProblemError(505, "http-version", detail)
        self._service = service_of(request)
        self._settings, self._in_flight = self._service.settings, self._service.loaded.in_flight
        self._scope, self._answer_line = request.scope, answer
        self._context: RequestContext = request.scope["state"]["context"]
        self._lines = BodyLines(request, self._settings, self._service.loaded.spool_file)
        self._begun: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(MAX_BEGUN_LINES)
        self._unanswered = 0
        """Number of lines that were begun and whose responses are not written."""
        self._unwritten, self._written = 0, asyncio.Event()
        self._next_line = 1
        """Number of the first line that was not begun."""
        self._last_write = time.monotonic()
        self._is_started = self._is_complete = False
        self._ending: ProblemError | None = None
        """Why the stream ends before its lines do."""

    async def run(self, send: Send) -> None:
        """Read and answer. Raises ClientGoneError, and what ends the stream before its first response."""
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._receive()), tasks.create_task(self._watch())]
                writing = tasks.create_task(self._write(send))
                await self._begin_lines(tasks)
                await self._begun.put(None)
                await writing
                await self._complete(send)
                for helper in helpers:
                    helper.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._count(-self._unwritten)
            self._lines.spool.close()

    def _count(self, size: int) -> None:
        """Count bytes of responses that wait to be written, or were if negative."""
        self._unwritten += size
        self._service.unsent.of_lines += size

    async def _receive(self) -> None:
        try:
            await self._lines.receive()
        except ClientGoneError:
            if not self._is_complete:
                raise

    async def _begin_lines(self, tasks: asyncio.TaskGroup) -> None:
        """Begin one line after the other, each when there is room for it, until their end or the stream's."""
        async for number, line in self._lines:
            while self._unwritten > MAX_UNWRITTEN_BYTES and self._ending is None:
                self._written.clear()
                await self._written.wait()
            tokens = await self._in_flight.take(line) if isinstance(line, bytes) else 0
            if self._ending is not None:
                self._in_flight.give_back(tokens)
                break
            self._next_line = number + 1
            self._unanswered += 1
            task = tasks.create_task(self._answer(number, line))
            # Not in the task: one that is cancelled before its first step runs nothing.
            task.add_done_callback(partial(self._give_back, tokens))
            await self._begun.put(task)
            await asyncio.sleep(0)  # lines that begin in one turn of the event loop would hold it

    def _give_back(self, tokens: int, _: asyncio.Task[bytes]) -> None:
        self._in_flight.give_back(tokens)

    async def _answer(self, number: int, line: bytes | ProblemError) -> bytes:
        """Return a line's response, or its problem."""
        state: dict[str, Any] = {"context": self._new_context(time.monotonic())}
        try:
            if isinstance(line, ProblemError):
                raise line
            response = await self._answer_with_patience(line, state)
            body, status, problem = bytes(response.body), 200, None
        except Exception as error:
            problem = self._service.count_problem(error)
            body, status = self._problem_line(problem, number, state.get(ERROR_WRITER)), problem.status
        context = state["context"]
        self._service.record(context, context.endpoint, status)
        if problem is not None:
            self._service.request_log.write(self._scope, context, status, problem, line=number)
        self._context.tokens += context.tokens
        self._context.model = context.model or self._context.model
        self._count(len(body))
        return body

    async def _answer_with_patience(self, line: bytes, state: dict[str, Any]) -> Response:
        """Return a line's response. While too much else waits, or is left unread, or the engine is away, try again later."""
        began = time.monotonic()
        while True:
            state |= {"context": self._new_context(began)}
            try:
                return await self._answer_line({**self._scope, "state": state}, line)
            except (QueueFullError, RateLimitedError, NotReadyError) as error:
                if self._ending is not None:
                    raise
                wait_s = MAX_RETRY_S if isinstance(error, NotReadyError) else error.retry_after_s
            except ProblemError as problem:
                if problem.code != RESPONSES_FULL or self._ending is not None:
                    raise
                wait_s = MAX_RETRY_S
            await asyncio.sleep(min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S))

    def _new_context(self, began: float) -> RequestContext:
        """Return the context of a line that was begun at `began`, and whose time starts now."""
        own = self._context
        return RequestContext(
            own.request_id, own.endpoint, time.monotonic(), own.timeout_ms, began=began, grant=own.grant
        )

    def _problem_line(self, problem: ProblemError, number: int, writer: ErrorWriter | None = None) -> bytes:
        """Return a problem in the form that its request would have got, with the line's number."""
        response = (writer or problem_response)(problem, self._context.request_id)
        return orjson.dumps(orjson.loads(response.body) | {"line": number})

    async def _write(self, send: Send) -> None:
        """Write the responses in the order of their lines, those that are ready together."""
        parts = list[bytes]()
        while (task := await self._begun.get()) is not None:
            if parts and not task.done():
                await self._send_lines(send, parts)
            parts.append(await task)
            if self._begun.empty() or sum(map(len, parts)) >= WRITE_BYTES:
                await self._send_lines(send, parts)
        await self._send_lines(send, parts)

    async def _send_lines(self, send: Send, parts: list[bytes]) -> None:
        """Write responses and remove them from the list."""
        if parts:
            await self._send(send, b"\n".join([*parts, b""]))
            self._scope["state"][ANSWERED_LINES] += len(parts)
            self._count(-sum(map(len, parts)))
            self._unanswered -= len(parts)
            parts.clear()
            self._written.set()

    async def _complete(self, send: Send) -> None:
        """Write why the stream ended early, if it did, and the end of the response."""
        problem, last = self._ending or self._lines.error, b""
        if problem is not None:
            if not self._is_started:
                raise problem
            problem = self._service.count_problem(problem)
            LOGGER.warning(
                "a request of many lines ended at line %d: %s",
                self._next_line,
                problem.detail,
                extra={"fields": {"request_id": self._context.request_id}},
            )
            last = self._problem_line(problem, self._next_line) + b"\n"
        self._is_complete = True
        await self._send(send, last, more=False)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send part of the response, its head before the first."""
        if not self._is_started:
            self._is_started = True
            self._scope["state"][ANSWERED_LINES] = 0
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._last_write = time.monotonic()

    async def _watch(self) -> None:
        """End the stream early when there is a reason to."""
        while (ending := self._why_ending()) is None:
            await asyncio.sleep(WATCH_S)
        self._ending = ending
        self._lines.spool.close()
        self._written.set()

    def _why_ending(self) -> ProblemError | None:
        now, settings = time.monotonic(), self._settings
        if self._service.is_stopping():
            return problem_of(NotReadyError("the service is stopping; send the lines from this one on again"))
        if now - self._context.began > settings.stream_timeout_ms / 1000:
            detail = (
                f"the lines were not all answered after {settings.stream_timeout_ms} ms (stream_timeout_ms); "
                "send those from this one on again"
            )
            return ProblemError(504, "deadline-exceeded", detail, reason="deadline")
        is_waiting = self._lines.is_awaited and not (self._unanswered or self._lines.is_whole)
        last = max(self._last_write, self._lines.last_line)
        if is_waiting and now - last > settings.body_timeout_ms / 1000:
            detail = f"no line had arrived after {settings.body_timeout_ms} ms (body_timeout_ms)"
            return ProblemError(408, "body-timeout", detail)
        return None
