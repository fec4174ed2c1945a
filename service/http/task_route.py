"""The route of every task: it reads the body within limits, and stops at the deadline or when the client leaves."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, get_type_hints

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bert.errors import DeadlineExceededError
from service.engine.loaded_model import Model
from service.http import responses, schemas
from service.http.lifecycle import service_of
from service.http.problems import ClientGoneError
from service.http.request_body import INLINE_BYTES, LINES, media_type, parse, read_body, timeout_ms
from service.http.streams.line_stream import LineStream
from service.pipeline.inputs import RequestContext, Texts, check_count
from service.pipeline.pipeline import INLINE_RESULTS, Pipeline
from service.pipeline.relevance import Relevance, find_reranker

WATCH_AFTER_S = 0.05
"""Delay before watching for a disconnect. The watch needs a task, and most requests finish sooner."""


class CancelOnDisconnect:
    """`async with CancelOnDisconnect(request, context):` cancels at the deadline or when the client disconnects.

    Raises DeadlineExceededError or ClientGoneError. The body must have been read before: the next message is then the
    disconnect.
    """

    __slots__ = ("_context", "_left", "_request", "_timeout", "_timer", "_watch")

    def __init__(self, request: Request, context: RequestContext) -> None:
        """Start nothing yet."""
        self._request, self._context = request, context
        self._left = False
        self._watch: asyncio.Future[Message] | None = None

    async def __aenter__(self) -> None:
        """Start both watches."""
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch_client)
        self._timeout = asyncio.timeout(self._context.deadline - time.monotonic())
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop both watches and raise the error of the one that ended the block."""
        self._timer.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._left:
                raise ClientGoneError from None
            raise DeadlineExceededError(self._context.timeout_ms) from None
        if isinstance(error, DeadlineExceededError):  # raised by the scheduler
            raise DeadlineExceededError(self._context.timeout_ms) from None

    def _watch_client(self) -> None:
        self._watch = asyncio.ensure_future(self._request.receive())
        self._watch.add_done_callback(self._client_left)

    def _client_left(self, watch: asyncio.Future[Message]) -> None:
        if watch.cancelled():
            return
        watch.exception()
        if watch is self._watch and not self._timeout.expired():  # else the block has ended meanwhile
            self._left = True
            self._timeout.reschedule(asyncio.get_running_loop().time())


class TaskRequest(Request):
    """A request for a model, given to the endpoint after its body was read."""

    context: RequestContext
    pipeline: Pipeline
    needs_json = False
    """The response has to be JSON: a line of many, or a part of a wire's."""

    def begin(self) -> None:
        """Find what the endpoint needs; raises NotReadyError if the models are not loaded."""
        self.context, self.pipeline = self.scope["state"]["context"], service_of(self).loaded.pipeline

    @property
    def max_texts(self) -> int:
        """Return how many texts a request may have."""
        return service_of(self).settings.max_texts_per_request

    def find_model(self, name: str | None, task: str | None) -> Model:
        """Return the model that answers, and note its name. Raises what `Registry.find` does."""
        model = service_of(self).loaded.registry.find(name, task)
        self.context.model = model.name
        return model

    def check_count(self, *fields: Texts) -> None:
        """Raise the 422 of no texts, or of too many."""
        check_count(self.max_texts, *fields)

    async def rank(self, model: str | None, query: Texts, candidates: Texts, *, truncate: bool) -> Relevance:
        """Return the relevance of each candidate for a query, and note the name of the model."""
        found = find_reranker(service_of(self).loaded.registry, model)
        self.context.model = found.name
        self.check_count(query, candidates)
        return await self.pipeline.relevance(self.context, found, query, candidates, truncate=truncate)

    async def respond(
        self, count: int, results: Callable[[], Iterable[dict[str, Any]]], max_inline: int = INLINE_RESULTS
    ) -> Response:
        """Write the results, in a thread if they are large or more than `max_inline`."""
        return await self.pipeline.write(
            self.context, count, lambda: responses.task_response(self.context, results()), max_inline
        )


class TaskRoute(APIRoute):
    """A route that reads and validates the body within limits.

    FastAPI documents and matches it but does not handle its requests: it would read a body of any size and validate it
    on the event loop.
    """

    any_type: ClassVar[bool] = False
    """Accept a body of any content type, or of none."""
    takes_lines: ClassVar[bool] = True
    """Answer a body of lines (LINES) line by line."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Response]], **options: Any) -> None:
        """Take the type of the endpoint's parameter `body` as the request's schema."""
        super().__init__(path, endpoint, **options)
        self.schema: type[schemas.Schema] = get_type_hints(endpoint)["body"]
        self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = TaskRequest(scope, receive)
        request.begin()
        settings, context = service_of(request).settings, request.context
        context.timeout_ms = timeout_ms(scope, settings.request_timeout_ms)
        if self.takes_lines and media_type(scope) in LINES:
            await LineStream(request, self._answer_line).run(send)
            return
        raw = await read_body(request, settings, context, any_type=self.any_type)
        response = await self._answer_body(request, raw)
        await response(scope, receive, send)

    async def _answer_line(self, scope: Scope, line: bytes) -> Response:
        request = TaskRequest(scope, _never)
        request.needs_json = True
        request.begin()
        return await self._answer_body(request, line)

    async def _answer_body(self, request: TaskRequest, raw: bytes) -> Response:
        """Run the endpoint until the deadline, or until the client leaves."""
        async with CancelOnDisconnect(request, request.context):
            if len(raw) <= INLINE_BYTES:
                body = self.parse(request, raw)
            else:
                body = await request.pipeline.run_in_thread(lambda: self.parse(request, raw))
            return await self.answer(request, body)

    def parse(self, request: TaskRequest, raw: bytes) -> schemas.Schema:
        """Return the validated body. Raises what `request_body.parse` does."""
        return parse(self.schema, raw, request.max_texts)

    async def answer(self, request: TaskRequest, body: schemas.Schema) -> Response:
        """Return the endpoint's response."""
        response: Response = await self.endpoint(request, body)
        return response


async def _never() -> Message:
    """Receive nothing: a line's client is watched by the stream."""
    await asyncio.Future()
    raise AssertionError
