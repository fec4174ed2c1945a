"""Cohere's embeddings: POST /v2/embed. Reranking is in `rerank`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator
from starlette.responses import Response

from service.http.compat.base import CompatibleApi, answer, prompt_for
from service.http.compat.requests import CompatibleRequest, only, strings
from service.http.compat.rerank import write_error
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.embed import INLINE_VECTORS, in_base64
from service.tasks.embedding_types import EmbeddingType, converter
from service.tasks.schema import RESULT_BYTES, Dimensions, Example, text_size
from service.tasks.task import NUMBER_BYTES, check_dimensions, embed, in_parts, prompted

API = CompatibleApi(
    "cohere", "Embeddings for Cohere's clients: base URL `/`.", paths=r"/v2/embed", write_error=write_error
)


def _texts(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")
    return strings(value)


class EmbedTextsRequest(CompatibleRequest):
    """Texts to embed, and the types of numbers to give of each."""

    example: ClassVar[Example] = {
        "model": "similarity",
        "texts": ["How do I reset my password?"],
        "input_type": "search_query",
        "embedding_types": ["float", "ubinary"],
    }
    texts: Annotated[list[str], PlainValidator(_texts, json_schema_input_type=list[str])]
    model: str | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = Field(
        None, description="The model's prompt of that name goes before each text, or `query` and `document`."
    )
    embedding_types: list[Literal[EmbeddingType, "base64"]] | None = Field(
        None, description="base64 is of float32. Default: float."
    )
    output_dimension: Dimensions | None = Field(
        None, description="Keep so many numbers of each vector, as in /embed."
    )
    truncate: Literal["END", "NONE"] | None = Field(
        "END", description="NONE refuses texts over the model's length. START is not served."
    )
    max_tokens: Annotated[Any, only(why="texts are cut where the model ends")] = None
    images: Annotated[Any, only([], why="images are not read")] = None
    inputs: Annotated[Any, only([], why="send `texts`")] = None
    priority: Annotated[Any, only(0, why="all requests have one priority")] = None


@API.post(
    "/v2/embed",
    answer={
        "id": "3f2a9c0d1e4b5a69",
        "response_type": "embeddings_by_type",
        "embeddings": {"float": [[0.00690308, -0.0630234, -0.072044]], "ubinary": [[133, 92]]},
        "texts": ["How do I reset my password?"],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}},
    },
)
async def embed_texts(request: TaskRequest, body: EmbedTextsRequest) -> Response:
    """Turn texts into vectors, in numbers of several types."""
    call, text = request.find(body.model, "similarity"), Texts("texts", body.texts, True)
    call.check_count(text)
    model, context, size = call.model, request.context, body.output_dimension
    check_dimensions(model, size, "output_dimension")
    kinds = list(dict.fromkeys(body.embedding_types or ["float"]))
    converters = {kind: converter(model, kind, size, "embedding_types") for kind in kinds}
    numbers = len(kinds) * (size or model.embedding_size or 0) * NUMBER_BYTES
    call.note_size(text, sum(RESULT_BYTES + numbers + text_size(each) for each in text.values))
    asked = prompted(text, model, prompt_for(model, body.input_type, "input_type"))
    found = await embed(call, asked, truncate=body.truncate != "NONE", dimensions=size, shown=False)
    meta: dict[str, Any] = {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": context.tokens},
    }
    if cut := [index for index, was_cut in enumerate(found.truncated) if was_cut]:
        meta["warnings"] = [f"cut at the model's length: texts {cut}"]

    def write() -> Response:
        embeddings = dict[str, Any]()
        for kind, convert in converters.items():
            vectors: Any = convert(found.vectors)
            embeddings[kind] = in_parts(map(in_base64, vectors) if kind == "base64" else vectors)
        content = {"id": context.request_id, "response_type": "embeddings_by_type", "embeddings": embeddings}
        return answer({**content, "texts": text.values, "meta": meta})

    return await request.write(len(text) * len(kinds), write, INLINE_VECTORS)
