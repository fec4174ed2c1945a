"""The route of every task: it reads the body within limits, and stops at the deadline or when the client leaves.

FastAPI finds the route and derives the documentation from it; `task_routes` makes one for each task of the table.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from types import TracebackType
from typing import Any, ClassVar, TypeVar, get_type_hints
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from bert.errors import DeadlineExceededError
from service.engine.models import Model, Registry
from service.http import openapi
from service.http.lifecycle import service_of
from service.http.problems import ClientGoneError, ProblemError
from service.http.request_body import (
    INLINE_BYTES,
    LINES,
    expected_size,
    media_type,
    parse,
    read_body,
    timeout_ms,
)
from service.http.streams.line_stream import LineStream
from service.pipeline.inputs import RequestContext
from service.pipeline.pipeline import Pipeline
from service.tasks.schema import Schema
from service.tasks.task import INLINE_RESULTS, Call, Embedded, Results, ServedTask, in_parts, to_json

Result = TypeVar("Result")
SMALL_RESPONSE_BYTES = 2**16
"""Largest noted size of a response for which no room is asked; `max_connections` bounds what those take together."""
INLINE_RESPONSE_BYTES = 2**18
"""Largest response that is serialised on the event loop, within 1 ms."""
WATCH_AFTER_S = 0.05
"""Delay before watching for a disconnect. The watch needs a task, and most requests finish sooner."""
MAX_LISTED = 200
"""Maximum indices in the header X-Truncated: proxies accept only a few kilobytes of headers."""


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


class JsonResponse(Response):
    """A 200 with two headers."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers; Starlette's own method costs more."""
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def npy_response(context: RequestContext, embedded: Embedded) -> Response:
    """Return the 200 of vectors (N, E) as a NumPy file, with what JSON says beside them in headers.

    Where texts have several, X-Vectors says how many each has.
    """
    file, vectors = BytesIO(), np.ascontiguousarray(embedded.vectors)
    np.save(file, vectors.astype(vectors.dtype.newbyteorder("<"), copy=False), allow_pickle=False)
    name = context.model
    headers = {
        "X-Model": name if name.isascii() and name.isprintable() else quote(name),
        "X-Usage-Tokens": str(context.tokens),
    }
    if embedded.counts:
        headers["X-Vectors"] = ",".join(map(str, embedded.counts))
    if any(embedded.truncated):
        cut = [str(index) for index, cut in enumerate(embedded.truncated) if cut]
        headers["X-Truncated"] = ",".join(cut[:MAX_LISTED])
        headers["X-Truncated-Count"] = str(len(cut))
    return Response(file.getvalue(), headers=headers, media_type=openapi.NPY)


def with_canaries(registry: Registry, canaries: Mapping[str, str]) -> Registry:
    """Return the registry for one request: by chance, other versions answer for the names that have canaries."""
    drawn = dict[str, Model]()
    for name, canary in canaries.items():
        version, _, share = canary.rpartition(":")
        model = registry.models.get(f"{name}@{version}")
        if model is not None and random.random() < float(share):
            default = registry.models[name]
            drawn |= {name: model, f"{name}@{default.bundle.manifest.version}": default}
    return replace(registry, models={**registry.models, **drawn}) if drawn else registry


class TaskRequest(Request):
    """A request for a model, given to the endpoint after its body was read."""

    context: RequestContext
    pipeline: Pipeline
    registry: Registry
    """Models that answer this request by their names: those of canaries are drawn."""
    _served: Registry
    needs_json = False
    """The response has to be JSON: a line of many, or a part of another API's."""

    def begin(self) -> None:
        """Find what the endpoint needs; raises NotReadyError if the models are not loaded."""
        loaded = service_of(self).loaded
        self.context = self.scope["state"]["context"]
        self.pipeline, self.registry = loaded.pipeline, loaded.registry
        self._served = self.registry
        if canaries := service_of(self).settings.canary:
            self.registry = with_canaries(self.registry, canaries)

    def find(self, name: str | None, task: str | None) -> Call:
        """Return the call of the model that answers. Raises what `Registry.find` does."""
        return self.call(self.registry.find(name, task))

    def call(self, model: Model) -> Call:
        """Return the call of a model, and note its name. Raises the 403 of a key that may not use it."""
        grant = self.context.grant
        if grant is not None and not grant.may_use(model.name):
            detail = f"the key {grant.name!r} may not use the model {model.name!r}; name one that it may use"
            raise ProblemError(403, "forbidden", detail, reason="forbidden")
        self.context.model = self._served.key_of(model)
        self.context.version = model.bundle.manifest.version
        sampler = service_of(self).sampler
        self.context.sample = sampler.take if sampler is not None and sampler.chosen() else None
        return Call(self.pipeline, self.context, model, self.needs_json)

    def shadow_of(self, model: Model) -> Model | None:
        """Return the version that reads this request too, by chance and by the setting; None if none does."""
        version, _, share = service_of(self).settings.shadow.get(model.name, "").rpartition(":")
        if not version or random.random() >= float(share):
            return None
        found = (
            each for each in self._served.versions(model.name) if each.bundle.manifest.version == version
        )
        shadow = next(found, None)
        return shadow if shadow is not model else None

    async def respond(self, results: Results) -> Response:
        """Write the results of a task, in a thread if they are large or many."""
        if not results.is_lazy:
            return await self.write(results.count, lambda: self._made(results), results.max_inline)
        with self.context.timed("decode"):
            return await self.write(results.count, lambda: self._made(results), results.max_inline)

    async def write(
        self, results: int, function: Callable[[], Result], max_inline: int = INLINE_RESULTS
    ) -> Result:
        """Serialise a response, in a thread if it is large or has more than `max_inline` results.

        Raises the 503 of too many bytes of responses that clients left unread.
        """
        size = self.context.response_bytes
        is_short = results <= max_inline and size <= INLINE_RESPONSE_BYTES
        if size <= SMALL_RESPONSE_BYTES:
            return function() if is_short else await self.pipeline.run_in_thread(function)
        with service_of(self).unsent.room(size):
            return function() if is_short else await self.pipeline.run_in_thread(function)

    def _made(self, results: Results) -> Response:
        if results.file is not None:
            return npy_response(self.context, results.file)
        return self.content(results.rows(in_parts))

    def content(self, results: Iterable[Mapping[str, Any]]) -> Response:
        """Return the 200 with these results."""
        context = self.context
        usage = {"tokens": context.tokens}
        body: dict[str, object] = {"model": context.model, "results": in_parts(results), "usage": usage}
        if context.warnings:
            body["warnings"] = context.warnings
        return JsonResponse(to_json(body))


class TaskRoute(APIRoute):
    """A route that reads and validates the body within limits.

    FastAPI documents and matches it but does not handle its requests: it would read a body of any size and validate it
    on the event loop.
    """

    any_type: ClassVar[bool] = False
    """Accept a body of any content type, or of none."""
    takes_lines: ClassVar[bool] = True
    """Answer a body of lines (LINES) line by line."""
    needs_engine: bool = True
    """The engine runs its requests, and they are refused unread while its queue is full."""
    model_tasks: tuple[str, ...] = ()
    """Tasks of the models that may answer; none where the path does not tell."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Response]], **options: Any) -> None:
        """Take the type of the endpoint's parameter `body` as the request's schema."""
        super().__init__(path, endpoint, **options)
        self.schema: type[Schema] = get_type_hints(endpoint)["body"]
        self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = TaskRequest(scope, receive)
        request.begin()
        settings, context = service_of(request).settings, request.context
        context.timeout_ms = timeout_ms(scope, settings.request_timeout_ms)
        if self.takes_lines and media_type(scope) in LINES:
            await LineStream(request, self._answer_line).run(send)
            return
        if self.needs_engine and (size := expected_size(scope)):
            models = self._models(request)
            request.pipeline.early_refusal.check(models, size, context.deadline, context.key)
        raw = await read_body(request, settings, context, any_type=self.any_type)
        response = await self._answer_body(request, raw)
        await response(scope, receive, send)

    def _models(self, request: TaskRequest) -> list[str]:
        """Return the ids of the models that may answer, as far as the path tells."""
        models, named = request.registry.models, str(request.path_params.get("model", ""))
        if named in models:
            return [models[named].id]
        tasks = self.model_tasks
        return [model.id for model in models.values() if not tasks or model.spec.task in tasks]

    async def _answer_line(self, scope: Scope, line: bytes) -> Response:
        request = TaskRequest(scope, _never)
        request.needs_json = True
        request.begin()
        return await self._answer_body(request, line)

    async def _answer_body(self, request: TaskRequest, raw: bytes) -> Response:
        """Run the endpoint until the deadline, or until the client leaves."""
        request.context.body_bytes = len(raw)
        async with CancelOnDisconnect(request, request.context):
            if len(raw) <= INLINE_BYTES:
                body = self.parse(request, raw)
            else:
                body = await request.pipeline.run_in_thread(lambda: self.parse(request, raw))
            return await self.answer(request, body)

    def parse(self, request: TaskRequest, raw: bytes) -> Schema:
        """Return the validated body. Raises what `request_body.parse` does."""
        return parse(self.schema, raw, request.pipeline.max_texts)

    async def answer(self, request: TaskRequest, body: Schema) -> Response:
        """Return the endpoint's response."""
        response: Response = await self.endpoint(request, body)
        return response


async def _never() -> Message:
    """Receive nothing: a line's client is watched by the stream."""
    await asyncio.Future()
    raise AssertionError


def endpoint_of(task: ServedTask[Any]) -> Callable[[TaskRequest, Any], Awaitable[Response]]:
    """Return the handler of a task's requests."""

    async def answer(request: TaskRequest, body: Any) -> Response:
        model = task.find(request.registry, body.model, body)
        response = await request.respond(await task.run(request.call(model), body))
        if (shadow := request.shadow_of(model)) is not None:
            service_of(request).shadow(
                shadow, request.context, lambda own: task.run(Call(request.pipeline, own, shadow), body)
            )
        return response

    answer.__annotations__["body"] = task.request
    return answer


def task_routes(tasks: Iterable[ServedTask[Any]], route: type[TaskRoute] = TaskRoute) -> list[BaseRoute]:
    """Return the documented routes of tasks."""
    router = APIRouter(tags=["tasks"], route_class=route, responses=openapi.problems(*openapi.PROBLEMS))
    for task in tasks:
        success = openapi.success_with_npy if task.has_file else openapi.success
        documented = success(task.example)
        documented[200] = openapi.with_lines(documented[200])
        request = openapi.task_request(task.request)
        request["requestBody"] = openapi.with_lines(request["requestBody"])
        router.add_api_route(
            task.path,
            endpoint_of(task),
            methods=["POST"],
            name=task.name,
            description=task.__doc__,
            response_model=task.response,
            responses=documented,
            openapi_extra=request,
        )
        added = router.routes[-1]
        assert isinstance(added, TaskRoute)
        added.needs_engine, added.model_tasks = task.needs_engine, task.model_tasks
    return router.routes
