"""Text Embeddings Inference: /tei/MODEL for a named model, /tei for the default model of each path's task."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import displayed
from bert.manifest import CUDA
from bert.tasks.classification import Scoring
from bert.tasks.vectors.similarity import normalize
from bert.tasks.vectors.token_vectors import SIDES
from service.http.compat.base import EXAMPLE_INFO, CompatibleApi, answer, describe, error_response, health
from service.http.compat.requests import refused, validate
from service.http.compat.tei_requests import (
    TeiAnyRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiOptions,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityRequest,
    TeiSparseRequest,
    TeiTokenizeRequest,
)
from service.http.problems import ProblemError
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts, check_count
from service.tasks.classification import classify
from service.tasks.embed import INLINE_VECTORS
from service.tasks.embed import embed_sparse as sparse_vectors
from service.tasks.rerank import Relevance, find_reranker, is_cross_encoder, numbers, relevance
from service.tasks.schema import RESULT_BYTES, text_size
from service.tasks.sparse import Wanted
from service.tasks.task import INLINE_RESULTS, NUMBER_BYTES, Call, embed_tokens, in_parts, prompted
from service.tasks.task import embed as embed_texts
from service.tasks.tokenize import Token, tokens

KINDS = {
    HTTPStatus.FAILED_DEPENDENCY: "Backend",
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
    HTTPStatus.GATEWAY_TIMEOUT: "Backend",
}
_EMBEDS, _SPARSE, _CLASSIFIES = "similarity", "sparse", "classification"
SPARSE_VALUE_BYTES = 36
"""Bytes of an index and its weight as an object in JSON, about."""
EMPTY = "empty"
"""Code of the problem of no text."""
_LONGER_FROM = (0x80, 0x800, 0x10000)
"""First code points that take two, three and four bytes of UTF-8."""


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return TEI's error; a wrong key has an empty body."""
    status = 424 if problem.status == 500 else problem.status
    if status == HTTPStatus.UNAUTHORIZED:
        return Response(status_code=status, headers=problem.headers)
    kind = "Empty" if problem.code == EMPTY else KINDS.get(HTTPStatus(status), "Validation")
    return error_response(problem, status, {"error": problem.detail, "error_type": kind})


API = CompatibleApi(
    "tei",
    "Text Embeddings Inference: base URL `/tei/MODEL`, or `/tei` for the default embedding model.",
    paths=r"/tei(/.*)?",
    write_error=write_error,
)


@API.post("/tei/{model}/embed", "/tei/embed", answer=[[0.00690308, -0.0630234, -0.072044]])
async def embed(request: TaskRequest, body: TeiEmbedRequest) -> Response:
    """Turn texts into vectors, of length 1 unless `normalize` is false: a list of lists, also for one text."""
    call = _call(request, _EMBEDS)
    model = call.model
    text = prompted(_texts(request, "inputs", body.inputs), model, body.prompt_name)
    embedded = await embed_texts(call, text, truncate=body.cuts(), dimensions=body.dimensions)
    unit = body.normalize is not False and not model.spec.normalize
    vectors = normalize(embedded.vectors) if unit else embedded.vectors
    return await _written(request, lambda: in_parts(vectors), [text], embedded.truncated, INLINE_VECTORS)


@API.post("/tei/{model}/embed_all", "/tei/embed_all", answer=[])
async def embed_all(request: TaskRequest, body: TeiEmbedRequest) -> Response:
    """Return a vector for each token, as the model means it; `prompt_name` says query or document, the default."""
    call, side = _call(request, "token_vectors"), body.prompt_name or "document"
    if side not in SIDES or body.dimensions is not None:
        name, value = ("dimensions", body.dimensions) if side in SIDES else ("prompt_name", side)
        raise refused(
            name, f"is {displayed(str(value))!r}; vectors of tokens are those of a query or a document, whole"
        )
    text = _texts(request, "inputs", body.inputs)
    found = await embed_tokens(call, (text, side), truncate=body.cuts(), number_bytes=NUMBER_BYTES)
    vectors, count = [np.ascontiguousarray(each) for each in found.vectors], sum(map(len, found.vectors))
    return await _written(
        request, lambda: in_parts(vectors), [text], found.truncated, INLINE_VECTORS, results=count
    )


@API.post(
    "/tei/{model}/embed_sparse",
    "/tei/embed_sparse",
    answer=[[{"index": 2129, "value": 1.05}, {"index": 25141, "value": 2.25}]],
)
async def embed_sparse(request: TaskRequest, body: TeiSparseRequest) -> Response:
    """Turn texts into sparse vectors, as documents: the weights over 0, by ascending index."""
    call, text = _call(request, _SPARSE), _texts(request, "inputs", body.inputs)
    wanted = Wanted(weight_bytes=SPARSE_VALUE_BYTES)
    found = await sparse_vectors(
        call, text, wanted, prompt_name=body.prompt_name, side="document", truncate=body.cuts()
    )

    def shown() -> object:
        return [in_parts(map(_weight, row["indices"], row["values"])) for row in found.rows]

    return await _written(request, shown, [text], found.truncated, results=found.weights)


def _weight(index: int, value: float) -> dict[str, Any]:
    return {"index": index, "value": value}


@API.post("/tei/{model}/predict", "/tei/predict", answer=[{"score": 0.99, "label": "positive"}])
async def predict(request: TaskRequest, body: TeiPredictRequest) -> Response:
    """Classify a text or a pair (a list of scores, best first), or a list of these (a list of lists)."""
    call, rows = _call(request, _CLASSIFIES), body.inputs.rows
    model = call.model
    if model.spec.pair not in (None, len(rows[0]) == 2):
        reads = "pairs" if model.spec.pair else "single texts"
        raise ProblemError(424, "wrong-input", f"model {model.name!r} reads {reads}")
    text, *pair = [_texts(request, "inputs", list(column)) for column in zip(*rows, strict=True)]
    call.check_count(text, *pair)
    second, cut = pair[0] if pair else None, body.cuts()
    if len(model.spec.labels) == 1:
        one = await numbers(call, text, second, truncate=cut)
        chosen, truncated = one.raw_scores if body.raw_scores else one.scores, one.truncated
        scores = [[{"score": score, "label": model.spec.labels[0]}] for score in chosen.tolist()]
    else:
        scoring = Scoring(activation="identity" if body.raw_scores else None)
        found, truncated = await classify(call, text, second, scoring, truncate=cut)
        scores = [[{"score": score, "label": label} for label, score in each.scores] for each in found]
    return await _written(
        request, lambda: in_parts(scores) if body.inputs.is_batch else scores[0], [text, *pair], truncated
    )


@API.post(
    "/tei/{model}/rerank", "/tei/rerank", answer=[{"index": 1, "score": 0.9}, {"index": 0, "score": 0.1}]
)
async def rerank(request: TaskRequest, body: TeiRerankRequest) -> Response:
    """Rank texts for a query with a cross-encoder, best first."""
    model = _call(request, _CLASSIFIES).model
    if not is_cross_encoder(model.spec):
        raise ProblemError(424, "wrong-task", f"model {model.name!r} is not a re-ranker model")
    return await ranked(request, body, model.name)


async def ranked(request: TaskRequest, body: TeiRerankRequest, name: str | None = None) -> Response:
    """Answer a request with the named model, else with any that can rank."""
    query, texts = Texts.of("query", body.query), _texts(request, "texts", body.texts)
    call = request.call(find_reranker(request.registry, name))
    found = await relevance(call, query, texts, truncate=body.cuts())
    scores = found.raw_scores if body.raw_scores else found.scores
    results: list[dict[str, Any]] = [
        {"index": index, "score": float(scores[index])} for index in found.best_first(None)
    ]
    if body.return_text:
        call.note_size(texts, sum(RESULT_BYTES + text_size(text) for text in texts.values))
        results = [each | {"text": texts.values[each["index"]]} for each in results]
    return await _written(request, lambda: in_parts(results), [query, texts], found.truncated)


@API.post("/tei/{model}/similarity", answer=[0.68, 0.2])
async def similarity(request: TaskRequest, body: TeiSimilarityRequest) -> Response:
    """Return the cosine of each sentence with the source sentence, in the order of the request."""
    options, call = body.parameters or TeiOptions(truncate=None), _call(request, _EMBEDS)
    source = Texts.of("inputs.source_sentence", body.inputs.source_sentence)
    sentences = _texts(request, "inputs.sentences", body.inputs.sentences)
    call.check_count(source, sentences)
    source, sentences = (prompted(each, call.model, options.prompt_name) for each in (source, sentences))
    embedded = await embed_texts(call, source, sentences, truncate=options.cuts(), shown=False)
    found = Relevance.of_vectors(embedded)
    return await _written(
        request, lambda: in_parts(found.scores.tolist()), [source, sentences], found.truncated
    )


@API.post("/tei/similarity", answer=[0.68, 0.2])
async def similarity_or_model(request: TaskRequest, body: TeiAnyRequest) -> Response:
    """Ask the model called `similarity` as `/tei/{model}` does; if there is none, compare with the default model."""
    registry = request.registry
    if "similarity" in {*registry.models, *(each.name for each in registry.left_out)}:  # left out: 503
        request.path_params["model"] = "similarity"
        return await by_task(request, body)
    return await similarity(request, validate(TeiSimilarityRequest, body.model_extra))


@API.post(
    "/tei/{model}/tokenize",
    "/tei/tokenize",
    answer=[[{"id": 8199, "text": "Warsaw", "special": False, "start": 0, "stop": 6}]],
    needs_engine=False,
)
async def tokenize(request: TaskRequest, body: TeiTokenizeRequest) -> Response:
    """Show the tokens of texts; start and stop count bytes of UTF-8."""
    call = _call(request, None)
    text = prompted(_texts(request, "inputs", body.inputs), call.model, body.prompt_name or "")
    found = await tokens(call, text)

    def shown() -> object:
        return [
            in_parts(map(partial(_token, value, _bytes_before(value)), each))
            for value, each in zip(text.values, kept, strict=True)
        ]

    keep = body.add_special_tokens
    kept = [[token for token in each if keep or not token.special] for each in found]
    return await _written(request, shown, [text], [], results=request.context.tokens)


@API.post("/tei/{model}/decode", "/tei/decode", answer=["warsaw!"], needs_engine=False)
async def decode(request: TaskRequest, body: TeiDecodeRequest) -> Response:
    """Return the text of token ids."""
    tokenizer = _call(request, None).model.tokenizer

    def shown() -> object:
        return [tokenizer.decode(ids, skip_special=body.skip_special_tokens) for ids in body.ids]

    return await _written(request, shown, [], [], results=sum(map(len, body.ids)))


@API.post(
    "/tei/{model}",
    "/tei/{model}/",
    "/tei",
    "/tei/",
    "/tei/{model}/invocations",
    answer=[[0.00690308, -0.0630234]],
)
async def by_task(request: TaskRequest, body: TeiAnyRequest) -> Response:
    """Do what the model is for: predict, rerank or embed; compare if `inputs` has a source_sentence."""
    content = body.model_extra or {}
    spec = _call(request, None if "model" in request.path_params else _EMBEDS).model.spec
    if spec.task == _CLASSIFIES:
        if is_cross_encoder(spec) and "query" in content:
            return await rerank(request, validate(TeiRerankRequest, content))
        return await predict(request, validate(TeiPredictRequest, content))
    if spec.task == _SPARSE:
        return await embed_sparse(request, validate(TeiSparseRequest, content))
    if isinstance(content.get("inputs"), dict):
        return await similarity(request, validate(TeiSimilarityRequest, content))
    return await embed(request, validate(TeiEmbedRequest, content))


@API.get("/tei/{model}/info", "/tei/info", answer=EXAMPLE_INFO)
async def info(request: Request) -> Response:
    """Describe the model and the limits of requests."""
    return answer(describe(request, auto_truncate=True))


API.get(
    "/tei/{model}/health",
    "/tei/health",
    "/tei/{model}/ping",
    "/tei/ping",
    "/tei",
    "/tei/",
    answer=None,
    needs_key=False,
)(health)


def _call(request: TaskRequest, task: str | None) -> Call:
    """Return the call of the path's model, else of the default one; raises the 424 of a model for another task."""
    name = request.path_params.get("model")
    call = request.find(name, task if name is None else None)
    if (kind := call.model.spec.task) != task and task is not None:
        raise ProblemError(424, "wrong-task", f"model {call.model.name!r} is for {kind}, not for {task}")
    return call


def _texts(request: TaskRequest, name: str, sent: str | list[str]) -> Texts:
    """Return the texts of a field; raises the 400 of none, and of an empty one."""
    text = Texts.of(name, sent)
    if not len(text) or not all(text.values):
        raise ProblemError(400, EMPTY, f"`{name}` cannot be empty")
    check_count(request.pipeline.max_texts, text)
    return text


async def _written(
    request: TaskRequest,
    content: Callable[[], object],
    fields: Sequence[Texts],
    truncated: Sequence[bool],
    max_inline: int = INLINE_RESULTS,
    *,
    results: int | None = None,
) -> Response:
    """Return a response with TEI's headers, and x-truncated: the indices of the texts that were cut."""
    context = request.context

    models = request.registry.models

    def ms(*phases: str) -> str:
        return str(round(1000 * sum(context.seconds.get(phase, 0.0) for phase in phases)))

    headers = {
        "x-compute-type": "gpu" if models[context.model].provider == CUDA else "cpu",
        "x-compute-time": ms("tokenize", "inference", "decode"),
        "x-compute-characters": str(sum(len(value) for field in fields for value in field.values)),
        "x-compute-tokens": str(context.tokens),
        "x-total-time": str(round(1000 * (time.monotonic() - context.received))),
        "x-tokenization-time": ms("tokenize"),
        "x-queue-time": ms("queue"),
        "x-inference-time": ms("inference"),
    }
    if any(truncated):
        headers["x-truncated"] = ",".join(str(index) for index, cut in enumerate(truncated) if cut)
    count = max((len(field) for field in fields), default=0) if results is None else results
    return await request.write(count, lambda: answer(content(), headers), max_inline)


def _bytes_before(text: str) -> range | NDArray[np.int64]:
    """Return how many bytes of UTF-8 come before each character, and at the end."""
    if text.isascii():
        return range(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    before = np.zeros(len(points) + 1, np.int64)
    np.cumsum(1 + sum((points >= first).astype(np.int8) for first in _LONGER_FROM), out=before[1:])
    return before


def _token(text: str, bytes_before: range | NDArray[np.int64], token: Token) -> dict[str, Any]:
    if token.special:
        return {"id": token.id, "text": token.text, "special": True, "start": None, "stop": None}
    start, stop = int(bytes_before[token.start]), int(bytes_before[token.end])
    return {
        "id": token.id,
        "text": text[token.start : token.end],
        "special": False,
        "start": start,
        "stop": stop,
    }
