"""The task endpoints: body → pipeline → response.

FastAPI routes the requests and derives the documentation from the handlers' signatures.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, TypeVar, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bert.errors import DeadlineExceededError, FieldError, InvalidRequestError
from bert.tasks.aggregation import EntityOptions
from service.engine.loaded_model import Model
from service.http import embedding_schemas, openapi, responses, schemas, span_schemas
from service.http.lifecycle import service_of
from service.http.problems import ClientGoneError
from service.http.request_body import INLINE_BYTES, LINES, media_type, parse, read_body, timeout_ms
from service.http.streams.line_stream import LineStream
from service.pipeline.inputs import (
    Choices,
    RequestContext,
    Texts,
    check_allows_no_answer,
    check_choices,
    check_count,
    check_entity_types,
    pair_count,
    prompted,
)
from service.pipeline.pipeline import INLINE_RESULTS, INLINE_VECTORS, RESULT_CHARACTERS, Pipeline
from service.pipeline.relevance import Relevance, find_reranker

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])
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
    is_line = False
    """One of many requests in the lines of a body."""

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
        """Write the results, in a thread if there are more than `max_inline`."""
        return await self.pipeline.write(
            count, lambda: responses.task_response(self.context, results()), max_inline
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
        request.is_line = True
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


tasks = APIRouter(tags=["tasks"], route_class=TaskRoute, responses=openapi.problems(*openapi.PROBLEMS))


def task_endpoint(
    path: str, response: type[schemas.TaskResponse], *, has_npy: bool = False
) -> Callable[[Handler], Handler]:
    """Register a handler; the type of its parameter `body` is the request's schema."""

    def register(handler: Handler) -> Handler:
        add_task(tasks, path, response, handler, has_npy=has_npy)
        return handler

    return register


def add_task(
    router: APIRouter,
    path: str,
    response: type[schemas.TaskResponse],
    handler: Callable[..., Any],
    *,
    has_npy: bool = False,
) -> None:
    """Add a documented handler to a router; `has_npy` says that a response may be a NumPy file."""
    documented = openapi.success_with_npy if has_npy else openapi.success
    router.add_api_route(
        path,
        handler,
        methods=["POST"],
        response_model=response,
        responses=documented(response.example),
        openapi_extra=openapi.task_request(get_type_hints(handler)["body"]),
    )


@task_endpoint("/classify", schemas.ClassifyResponse)
async def classify(request: TaskRequest, body: schemas.ClassifyRequest) -> Response:
    """Classify texts or pairs of texts."""
    model, text = request.find_model(body.model, "classification"), Texts.of("text", body.text)
    pair = Texts.of("text_pair", body.text_pair) if body.text_pair is not None else None
    check_pair(model, text, pair)
    request.check_count(text, *([pair] if pair is not None else []))
    results, truncated = await request.pipeline.classify(
        request.context,
        model,
        text,
        pair,
        body.scoring(),
        truncate=body.truncate,
        windows=body.windows,
    )
    count = sum(len(result.scores) for result in results)
    return await request.respond(count, lambda: responses.classifications(results, truncated))


@task_endpoint("/multiple-choice", schemas.MultipleChoiceResponse)
async def multiple_choice(request: TaskRequest, body: schemas.MultipleChoiceRequest) -> Response:
    """Find the most probable of several texts for each prompt."""
    model = request.find_model(body.model, "multiple_choice")
    prompt, choices = Texts.of("prompt", body.prompt), Choices.of(body.choices)
    count = check_choices(service_of(request).settings.max_texts_per_request, prompt, choices)
    results, truncated = await request.pipeline.choose(
        request.context, model, prompt, choices, count, top_k=body.top_k, truncate=body.truncate
    )
    written = sum(map(len, results)) + choices.characters(count) // RESULT_CHARACTERS
    return await request.respond(written, lambda: responses.best_choices(results, choices, truncated))


@task_endpoint("/ner", span_schemas.NerResponse)
async def ner(request: TaskRequest, body: span_schemas.NerRequest) -> Response:
    """Find the entities of texts."""
    model, text = request.find_model(body.model, "ner"), Texts.of("text", body.text)
    request.check_count(text)
    types = check_entity_types(model, body.labels) if body.labels is not None else None
    options = EntityOptions(body.aggregation, body.min_score or 0.0, types)
    found = await request.pipeline.entities(request.context, model, text, options)
    return await request.respond(len(text) + sum(map(len, found)), lambda: responses.entities(found))


@task_endpoint("/similarity", embedding_schemas.SimilarityResponse)
async def similarity(request: TaskRequest, body: embedding_schemas.SimilarityRequest) -> Response:
    """Rank candidates by the similarity of their meaning to a text's."""
    context, pipeline = request.context, request.pipeline
    model, text = request.find_model(body.model, "similarity"), Texts.of("text", body.text)
    candidates = Texts.of("candidates", body.candidates)
    request.check_count(text, candidates)
    text = prompted(text, model, body.prompt_name)
    candidates = prompted(candidates, model, body.candidates_prompt_name, "candidates_prompt_name")
    embedded = await pipeline.embed(
        context, model, text, candidates, truncate=body.truncate, dimensions=body.dimensions
    )

    def rank() -> Response:
        rankings = pipeline.rank(model, embedded, len(text), body.top_k)
        with context.timed("decode"):
            return responses.task_response(context, responses.rankings(rankings, embedded, len(text)))

    return await pipeline.write(len(text) * len(candidates), rank)


@task_endpoint("/rerank", embedding_schemas.RerankResponse)
async def rerank(request: TaskRequest, body: embedding_schemas.RerankRequest) -> Response:
    """Rank candidates by how well they answer a query: by a cross-encoder, or else by their embeddings."""
    query, candidates = Texts.of("query", body.query), Texts.of("candidates", body.candidates)
    found = await request.rank(body.model, query, candidates, truncate=body.truncate)
    best_first = found.best_first(body.top_k)
    return await request.respond(len(best_first), lambda: responses.relevances(found, best_first))


@task_endpoint("/qa", span_schemas.QaResponse)
async def qa(request: TaskRequest, body: span_schemas.QaRequest) -> Response:
    """Answer questions from their contexts."""
    model, question = request.find_model(body.model, "qa"), Texts.of("question", body.question)
    passage = Texts.of("context", body.context)
    request.check_count(question, passage)
    if body.no_answer_threshold is not None:
        check_allows_no_answer(model, body.no_answer_threshold)
    found = await request.pipeline.answers(
        request.context,
        model,
        question,
        passage,
        top_k=body.top_k,
        max_answer_tokens=body.max_answer_tokens,
        no_answer_threshold=body.no_answer_threshold,
    )
    count = sum(1 + len(each.alternatives) for each in found)
    return await request.respond(count, lambda: responses.answers(found))


@task_endpoint("/embed", embedding_schemas.EmbedResponse, has_npy=True)
async def embed(request: TaskRequest, body: embedding_schemas.EmbedRequest) -> Response:
    """Turn texts into vectors."""
    model, text = request.find_model(body.model, "similarity"), Texts.of("text", body.text)
    request.check_count(text)
    if body.encoding_format == "binary" and request.is_line:
        message = "is 'binary', which is no line of JSON: ask for 'float' or 'base64'"
        raise InvalidRequestError([FieldError("encoding_format", message)])
    text = prompted(text, model, body.prompt_name)
    embedded = await request.pipeline.embed(
        request.context, model, text, truncate=body.truncate, dimensions=body.dimensions
    )
    if body.encoding_format == "binary":
        return await request.pipeline.write(
            len(text), lambda: responses.npy(request.context, embedded), INLINE_VECTORS
        )
    base64 = body.encoding_format == "base64"
    return await request.respond(
        len(text), lambda: responses.embeddings(embedded, base64=base64), INLINE_VECTORS
    )


@task_endpoint("/fill-mask", span_schemas.FillMaskResponse)
async def fill_mask(request: TaskRequest, body: span_schemas.FillMaskRequest) -> Response:
    """Find the most probable pieces for each [MASK]."""
    model, text = request.find_model(body.model, "fill_mask"), Texts.of("text", body.text)
    request.check_count(text)
    masks = await request.pipeline.fill_masks(request.context, model, text, top_k=body.top_k)
    with request.context.timed("decode"):  # masks are decoded one at a time while the response is written
        return await request.respond(masks.results, lambda: responses.masks(masks.texts))


@task_endpoint("/tokenize", span_schemas.TokenizeResponse)
async def tokenize(request: TaskRequest, body: span_schemas.TokenizeRequest) -> Response:
    """Show texts as a model reads them."""
    model, text = request.find_model(body.model, None), Texts.of("text", body.text)
    request.check_count(text)
    tokens = await request.pipeline.tokens(request.context, model, text)
    return await request.respond(request.context.tokens, lambda: responses.tokens(tokens))


def check_pair(model: Model, text: Texts, pair: Texts | None) -> None:
    """Refuse a pair for a model of single texts, and a single text for a model of pairs; some models read both."""
    if pair is not None and model.spec.pair is False:
        raise InvalidRequestError([FieldError("text_pair", f"model {model.name!r} reads single texts")])
    if pair is None and model.spec.pair:
        raise InvalidRequestError([FieldError("text_pair", f"is required: model {model.name!r} reads pairs")])
    if pair is not None:
        pair_count(text, pair)
