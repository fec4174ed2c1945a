"""The task endpoints: body → pipeline → response.

FastAPI routes the requests and derives the documentation from the handlers' signatures.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter
from starlette.responses import Response

from bert.errors import FieldError, InvalidRequestError
from bert.tasks.aggregation import EntityOptions
from service.engine.loaded_model import Model
from service.http import embedding_schemas, openapi, responses, schemas, span_schemas
from service.http.lifecycle import service_of
from service.http.task_route import TaskRequest, TaskRoute
from service.pipeline.inputs import (
    Choices,
    Texts,
    check_allows_no_answer,
    check_choices,
    check_entity_types,
    check_left_out,
    pair_count,
    prompted,
)
from service.pipeline.pipeline import INLINE_VECTORS

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])

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
    documented = (openapi.success_with_npy if has_npy else openapi.success)(response.example)
    documented[200] = openapi.with_lines(documented[200])
    request = openapi.task_request(get_type_hints(handler)["body"])
    request["requestBody"] = openapi.with_lines(request["requestBody"])
    router.add_api_route(
        path,
        handler,
        methods=["POST"],
        response_model=response,
        responses=documented,
        openapi_extra=request,
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
    return await request.respond(
        sum(map(len, results)), lambda: responses.best_choices(results, choices, truncated)
    )


@task_endpoint("/ner", span_schemas.NerResponse)
async def ner(request: TaskRequest, body: span_schemas.NerRequest) -> Response:
    """Find the entities of texts."""
    model, text = request.find_model(body.model, "ner"), Texts.of("text", body.text)
    request.check_count(text)
    types = check_entity_types(model, body.labels) if body.labels is not None else None
    kinds = check_left_out(body.left_out) if body.left_out is not None else frozenset[str]()
    options = EntityOptions(body.aggregation, body.min_score or 0.0, types, kinds)
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
        context, model, text, candidates, truncate=body.truncate, dimensions=body.dimensions, shown=False
    )

    def rank() -> Response:
        rankings = pipeline.rank(context, model, text, embedded, body.top_k)
        with context.timed("decode"):
            return responses.task_response(context, responses.rankings(rankings, embedded, len(text)))

    return await pipeline.write(context, len(text) * len(candidates), rank)


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
    if body.encoding_format == "binary" and request.needs_json:
        message = "is 'binary', which is not JSON: ask for 'float' or 'base64'"
        raise InvalidRequestError([FieldError("encoding_format", message)])
    text = prompted(text, model, body.prompt_name)
    embedded = await request.pipeline.embed(
        request.context, model, text, truncate=body.truncate, dimensions=body.dimensions
    )
    if body.encoding_format == "binary":
        return await request.pipeline.write(
            request.context, len(text), lambda: responses.npy(request.context, embedded), INLINE_VECTORS
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
