"""OpenAI's embeddings and models: POST /v1/embeddings, GET /v1/models."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator
from starlette.requests import Request
from starlette.responses import Response

from bert.tasks.vectors.output_types import CODED
from bert.tasks.vectors.similarity import normalize
from service.engine.models import Model
from service.http.compat.base import CompatibleApi, answer, error_response, prompt_for
from service.http.compat.requests import CompatibleRequest, Flag, refused, strings
from service.http.lifecycle import service_of
from service.http.problems import ProblemError
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.embed import INLINE_VECTORS, in_base64
from service.tasks.embedding_types import EmbeddingType, converter
from service.tasks.schema import Dimensions, Example
from service.tasks.task import embed, embed_chunks, in_parts, prompted

TOKEN_IDS = "holds token ids of another model: send strings (LangChain: check_embedding_ctx_length=False)"
CODES = {
    "unknown-model": "model_not_found",
    "unauthorized": "invalid_api_key",
    "forbidden": "model_not_found",
}


def _input(value: object) -> object:
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, int | list) for item in items):
        raise ValueError(TOKEN_IDS)
    if "" in items:
        raise ValueError("holds an empty string")
    return strings(value)


class EmbeddingsRequest(CompatibleRequest):
    """Texts to embed."""

    example: ClassVar[Example] = {"model": "similarity", "input": ["How do I reset my password?"]}

    input: Annotated[str | list[str], PlainValidator(_input, json_schema_input_type=str | list[str])]
    model: str
    encoding_format: Literal["float", "base64"] = Field(
        "float",
        description="base64: of float32, little endian. The official clients ask for it and decode it. Ignored beside "
        "`embedding_type`.",
    )
    embedding_type: Literal[EmbeddingType, "base64"] | None = Field(
        None, description="Jina's: type of the numbers, as in /embed; base64 is a string of float32."
    )
    task: str | None = Field(
        None,
        description="Jina's: retrieval.query and the like, for the model's prompt of that name or of its last word.",
    )
    normalized: Flag | None = Field(
        None,
        description="Jina's: true for vectors of length 1. False is refused of a model whose vectors have it.",
    )
    late_chunking: Flag = Field(
        False, description="Jina's: the texts are the chunks of one document, as in /embed."
    )
    dimensions: Dimensions | None = Field(
        None, description="Keep so many numbers of each vector, as in /embed."
    )
    prompt_name: str | None = Field(None, description="Not OpenAI's: as in /embed.")
    truncate: Flag = Field(
        False, description="Not OpenAI's: cut texts at the model's length instead of refusing them."
    )


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return OpenAI's error; bad fields are a 400, and a deadline that passed is not tried again."""
    status = 400 if problem.status == 422 else problem.status
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": problem.detail,
        "type": "rate_limit_error" if status == 429 else kind,
        "param": problem.errors[0].field if problem.errors else None,
        "code": CODES.get(problem.code),
    }
    headers = {"x_should_retry": "false"} if status == 504 else {}
    return error_response(problem, status, {"error": error}, **headers)


API = CompatibleApi(
    "openai",
    "Embeddings for clients of OpenAI's API: base URL `/v1`.",
    paths=r"/v1(/.*)?",
    write_error=write_error,
)
_VECTOR = {"object": "embedding", "index": 0, "embedding": [0.00690308, -0.0630234, -0.072044]}
_MODEL = {
    "id": "similarity",
    "object": "model",
    "created": 1767225600,
    "owned_by": "bert-serve",
    "name": "similarity",
    "ready": True,
}


@API.post(
    "/v1/embeddings",
    answer={
        "object": "list",
        "data": [_VECTOR],
        "model": "similarity",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    },
)
async def embeddings(request: TaskRequest, body: EmbeddingsRequest) -> Response:
    """Turn texts into vectors of length 1."""
    call, text = request.find(body.model, "similarity"), Texts.of("input", body.input)
    call.check_count(text)
    model, kind = call.model, body.embedding_type or body.encoding_format
    convert = converter(model, kind, body.dimensions)
    scaled = _is_scaled(model, body)
    by_task = prompt_for(model, body.task, "task")
    prompt = by_task if body.prompt_name is None else body.prompt_name
    options: dict[str, Any] = {"truncate": body.truncate, "dimensions": body.dimensions}
    if body.late_chunking:
        embedded = await embed_chunks(call, text, prompt, **options)
    else:
        embedded = await embed(call, prompted(text, model, prompt), **options)
    usage = {"prompt_tokens": request.context.tokens, "total_tokens": request.context.tokens}

    def write() -> Response:
        vectors = convert(normalize(embedded.vectors) if scaled else embedded.vectors)
        shown = map(in_base64, vectors) if kind == "base64" else vectors
        data = in_parts(
            {"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(shown)
        )
        return answer({"object": "list", "data": data, "model": model.name, "usage": usage})

    return await request.write(len(text), write, INLINE_VECTORS)


def _is_scaled(model: Model, body: EmbeddingsRequest) -> bool:
    """Tell whether vectors are brought to length 1 here. Raises InvalidRequestError for what a model cannot give."""
    if body.normalized is False and model.spec.normalize:
        raise refused(
            "normalized", f"is false, and the vectors of model {model.name!r} have length 1: leave it out"
        )
    scaled = body.normalized is True and not model.spec.normalize
    if scaled and body.embedding_type in CODED:
        message = f"is true, and the ranges of {body.embedding_type} are those of model {model.name!r}: of any length"
        raise refused("normalized", message)
    return scaled


@API.get("/v1/models", answer={"object": "list", "data": [_MODEL], "models": ["similarity"]})
async def models(request: Request) -> Response:
    """List the loaded models, for OpenAI's clients (`data`) and KServe's (`models`)."""
    loaded = service_of(request).loaded.registry.models
    data = [_described(request, model) for model in loaded.values()]
    return answer({"object": "list", "data": data, "models": list(loaded)})


@API.get("/v1/models/{model}", answer=_MODEL)
async def model(request: Request) -> Response:
    """Describe one model."""
    registry = service_of(request).loaded.registry
    return answer(_described(request, registry.find(request.path_params["model"], None)))


def _described(request: Request, model: Model) -> dict[str, object]:
    stamp = model.bundle.manifest.created
    return {
        "id": service_of(request).loaded.registry.key_of(model),
        "object": "model",
        "created": int(datetime.fromisoformat(stamp).timestamp()) if stamp else 0,
        "owned_by": "bert-serve",
        "name": model.name,
        "ready": service_of(request).why_model_not_ready(model) is None,
    }
