"""Reranking for clients of Cohere, Jina, vLLM and infinity: POST /rerank, /v1/rerank and /v2/rerank."""

import time
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator
from starlette.responses import Response

from service.engine.models import Model
from service.http.compat.base import CompatibleApi, answer, error_response
from service.http.compat.requests import CompatibleRequest, Flag, only, refused
from service.http.problems import ProblemError
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.rerank import find_reranker, relevance
from service.tasks.schema import RESULT_BYTES, Example, text_size, whole
from service.tasks.task import in_parts

MAX_TOKENS_PER_DOC = 4096
"""Cohere's default, which some of its clients always send."""
BY_EMBEDDINGS = (
    "scores are those of embeddings, a cosine from -1 to 1 by most models: no cross-encoder ranked"
)


def _documents(value: object) -> list[str]:
    """Read a list of documents, each a string or an object with `text`; raises ValueError for anything else."""
    items = value if isinstance(value, list) else [None]
    texts: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in items]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('must be a list of strings, or of objects with "text"')
    return texts


class DocumentsRequest(CompatibleRequest):
    """A query, and the documents that are ranked for it."""

    example: ClassVar[Example] = {
        "model": "similarity",
        "query": "How do I reset my password?",
        "documents": ["Opening hours on Sunday", "I forgot my login"],
    }
    query: str
    documents: Annotated[
        list[str], PlainValidator(_documents, json_schema_input_type=list[str | dict[str, str]])
    ]
    model: str | None = None
    top_n: Annotated[int, Field(ge=0), whole(0)] | None = Field(
        None, description="Number of results, best first. 0 or left out: all."
    )
    return_documents: Flag = False
    max_tokens_per_doc: Annotated[int, Field(ge=1), whole(1)] | None = Field(
        None, description="Cohere's: at least what the model reads. 4096, its default, stands for that."
    )
    max_chunks_per_doc: Annotated[Any, only(1, why="documents are cut and not split")] = None
    rank_fields: Annotated[Any, only(["text"], why="documents are ranked by their text")] = None
    relevant_spans: Annotated[Any, only(why="spans of documents are not looked for")] = None
    priority: Annotated[Any, only(0, why="all requests have one priority")] = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1), whole(-1)] | None = Field(
        None, description="vLLM's: -1, or at least what the model reads."
    )
    truncation_side: Annotated[Any, only("right", why="texts are cut at their end")] = None
    use_activation: Flag | None = Field(None, description="vLLM's: false is `raw_scores`.")
    raw_scores: Flag = Field(False, description="infinity's: a cross-encoder's number before the sigmoid.")
    truncate: Flag = Field(
        True, description="Not Cohere's: false refuses long documents instead of cutting them."
    )


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return an error that holds its text where each of these clients looks; bad fields are a 400."""
    status = 400 if problem.status == 422 else problem.status
    param = problem.errors[0].field if problem.errors else None
    error = {"message": problem.detail, "type": problem.code, "param": param, "code": status}
    return error_response(
        problem, status, {"message": problem.detail, "detail": problem.detail, "error": error}
    )


API = CompatibleApi(
    "rerank",
    "Reranking for clients of Cohere (base URL `/`), Jina (`/v1`), vLLM and infinity.",
    paths=r"/v[12]/rerank",
    write_error=write_error,
)


@API.post(
    "/v1/rerank",
    answer={
        "id": "3f2a9c0d1e4b5a69",
        "object": "rerank",
        "model": "similarity",
        "created": 1767225600,
        "results": [{"index": 1, "relevance_score": 0.68}, {"index": 0, "relevance_score": 0.2}],
        "usage": {"prompt_tokens": 22, "total_tokens": 22},
    },
)
async def rerank_v1(request: TaskRequest, body: DocumentsRequest) -> Response:
    """Rank documents for a query, best first: by a cross-encoder, else by their embeddings."""
    return await rerank(request, body)


@API.post("/v2/rerank", answer={"results": [{"index": 1, "relevance_score": 0.68}]})
async def rerank_v2(request: TaskRequest, body: DocumentsRequest) -> Response:
    """Rank documents for a query, best first: by a cross-encoder, else by their embeddings."""
    return await rerank(request, body)


async def rerank(request: TaskRequest, body: DocumentsRequest) -> Response:
    """Answer a request with `documents`."""
    context = request.context
    model = find_reranker(request.registry, body.model)
    _check_lengths(model, body)
    query, documents = Texts.of("query", body.query), Texts.of("documents", body.documents)
    call = request.call(model)
    found = await relevance(call, query, documents, truncate=body.truncate)
    best = found.best_first(body.top_n or None)
    is_raw = body.raw_scores or body.use_activation is False
    scores = found.raw_scores if is_raw else found.scores
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": float(scores[i])} for i in best]
    if body.return_documents:
        shown = (documents.values[index] for index in best)
        call.note_size(documents, sum(RESULT_BYTES + text_size(text) for text in shown))
        results = [each | {"document": {"text": documents.values[each["index"]]}} for each in results]
    tokens = context.tokens
    meta: dict[str, Any] = {
        "api_version": {"version": "1" if context.endpoint == "/v1/rerank" else "2"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": tokens},
    }
    if found.by_embeddings:
        meta["warnings"] = [BY_EMBEDDINGS]
    cut = [index for index, was_cut in enumerate(found.truncated) if was_cut]
    if cut:
        meta["warnings"] = [*meta.get("warnings", []), f"cut at the model's length: documents {cut}"]

    def write() -> Response:
        return answer(
            {
                "id": context.request_id,
                "object": "rerank",
                "model": context.model,
                "created": int(time.time()),
                "results": in_parts(results),
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "meta": meta,
            }
        )

    return await request.write(len(results), write)


def _check_lengths(model: Model, body: DocumentsRequest) -> None:
    """Refuse to cut documents at another length than the model's."""
    reads = model.spec.max_tokens
    for name, least in (
        ("max_tokens_per_doc", min(reads, MAX_TOKENS_PER_DOC)),
        ("truncate_prompt_tokens", reads),
    ):
        given = getattr(body, name)
        if given not in (None, -1) and given < least:
            message = f"is {given}, and texts are cut where model {model.name!r} ends, at {reads} tokens: leave it out"
            raise refused(name, message)
