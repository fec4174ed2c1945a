"""Token vectors and scores for clients of vLLM (POST /pooling and /score) and of Jina (POST /v1/multi-vector)."""

import time
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from starlette.responses import Response

from service.http.compat.base import CompatibleApi, answer
from service.http.compat.requests import CompatibleRequest, Flag, Strings, only, refused
from service.http.compat.rerank import write_error
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.embed import INLINE_VECTORS, NUMBER_BYTES_OF, in_base64
from service.tasks.rerank import find_reranker, relevance
from service.tasks.schema import Example
from service.tasks.sparse import Side
from service.tasks.task import embed_tokens, in_parts

_NO_CUT = "vectors are as long as the model gives them"
API = CompatibleApi(
    "vllm",
    "Token vectors and scores for clients of vLLM (base URL `/`) and Jina (`/v1`).",
    paths=r"/pooling|(/v1)?/score|/v1/multi-vector",
    write_error=write_error,
)


class PoolingRequest(CompatibleRequest):
    """Texts whose tokens get vectors."""

    example: ClassVar[Example] = {"model": "tokens", "input": ["A warm film."], "task": "token_embed"}
    input: Strings
    model: str | None = None
    task: Annotated[Any, only("token_embed", why="of vLLM's tasks only token_embed is done here")] = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Any, only(why=_NO_CUT)] = None
    side: Side = Field("document", description="Not vLLM's: read the texts as queries, or as documents.")
    truncate: Flag = Field(
        True, description="Not vLLM's: false refuses longer texts instead of cutting them."
    )


class MultiVectorRequest(CompatibleRequest):
    """Texts whose tokens get vectors."""

    example: ClassVar[Example] = {"model": "tokens", "input": ["A warm film."], "input_type": "document"}
    input: Strings
    model: str | None = None
    input_type: Side = "document"
    embedding_type: Annotated[Any, only("float", why="vectors are lists of numbers")] = None
    dimensions: Annotated[Any, only(why=_NO_CUT)] = None
    truncate: Flag = True


class ScoreRequest(CompatibleRequest):
    """A text, and the texts that are scored for it."""

    example: ClassVar[Example] = {"model": "tokens", "text_1": "Where is it warm?", "text_2": ["In Munich."]}
    text_1: Strings
    text_2: Strings
    model: str | None = None
    truncate: Flag = Field(
        True, description="Not vLLM's: false refuses longer texts instead of cutting them."
    )


def _envelope(request: TaskRequest, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what stands around vLLM's results."""
    context = request.context
    usage = {"prompt_tokens": context.tokens, "total_tokens": context.tokens}
    about = {"id": context.request_id, "object": "list", "created": int(time.time()), "model": context.model}
    return {**about, "data": in_parts(data), "usage": usage}


async def _vectors(
    request: TaskRequest,
    body: PoolingRequest | MultiVectorRequest,
    side: Side,
    form: str,
    field: str,
    **about: str,
) -> Response:
    """Answer with the vectors of each text in `field`, beside what `about` says of each."""
    call, texts = request.find(body.model, "token_vectors"), Texts.of("input", body.input)
    call.check_count(texts)
    found = await embed_tokens(
        call, (texts, side), truncate=body.truncate, number_bytes=NUMBER_BYTES_OF[form]
    )

    def write() -> Response:
        shown = (
            in_base64(each) if form == "base64" else np.ascontiguousarray(each) for each in found.vectors
        )
        data = [{"index": index, **about, field: each} for index, each in enumerate(shown)]
        return answer(_envelope(request, data))

    return await request.write(sum(map(len, found.vectors)), write, INLINE_VECTORS)


_EXAMPLE = {"model": "tokens", "usage": {"prompt_tokens": 6, "total_tokens": 6}}


@API.post(
    "/pooling", answer={**_EXAMPLE, "data": [{"index": 0, "object": "pooling", "data": [[0.12, -0.03]]}]}
)
async def pooling(request: TaskRequest, body: PoolingRequest) -> Response:
    """Return a vector for each token of each text."""
    return await _vectors(request, body, body.side, body.encoding_format, "data", object="pooling")


@API.post("/v1/multi-vector", answer={**_EXAMPLE, "data": [{"index": 0, "embeddings": [[0.12, -0.03]]}]})
async def multi_vector(request: TaskRequest, body: MultiVectorRequest) -> Response:
    """Return a vector for each token of each text."""
    return await _vectors(request, body, body.input_type, "float", "embeddings")


@API.post("/score", "/v1/score", answer={**_EXAMPLE, "data": [{"index": 0, "object": "score", "score": 9.1}]})
async def score(request: TaskRequest, body: ScoreRequest) -> Response:
    """Score texts for one text: by a cross-encoder, by token vectors, or by embeddings."""
    first, second = Texts.of("text_1", body.text_1), Texts.of("text_2", body.text_2)
    if len(first) != 1:
        raise refused(
            "text_1", f"holds {len(first)} texts, and must be one, to which all of text_2 are compared"
        )
    call = request.call(find_reranker(request.registry, body.model))
    found = await relevance(call, first, second, truncate=body.truncate)
    data = [
        {"index": index, "object": "score", "score": each} for index, each in enumerate(found.scores.tolist())
    ]
    return await request.write(len(data), lambda: answer(_envelope(request, data)))
