"""Vectors of texts: /embed."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bert.errors import FieldError, InvalidRequestError, displayed
from bert.graph_inputs import joined
from bert.tasks.spec import TaskSpec
from service.engine.models import Model, Registry
from service.pipeline.inputs import Texts
from service.tasks.embedding_types import EmbeddingType, converter
from service.tasks.schema import (
    Dimensions,
    Example,
    ModelName,
    PromptName,
    Schema,
    Text,
    Truncate,
    Truncated,
    TypedDict,
    complete,
)
from service.tasks.task import (
    NUMBER_BYTES,
    Call,
    Embedded,
    ListItems,
    Results,
    ServedTask,
    embed,
    prompted,
    response_example,
)
from service.tasks.token_vectors import FLOAT_BYTES, embed_tokens

NUMBER_BYTES_OF = {"float": NUMBER_BYTES, "base64": FLOAT_BYTES * 4 / 3, "binary": FLOAT_BYTES}
"""Bytes of a number in each form."""
INLINE_VECTORS = 32
"""Maximum embeddings serialised on the event loop, within 0.5 ms."""


class EmbedRequest(Schema):
    """One text or a list of texts."""

    example: ClassVar[Example] = {"text": "How do I reset my password?"}
    text: Text
    prompt_name: PromptName = None
    dimensions: Dimensions | None = Field(
        None,
        description="Keep the first numbers of each vector, of length 1 again if the model's vectors are. At most "
        "`embedding_size` of /models. Default: all.",
    )
    encoding_format: Literal["float", "base64", "binary"] = Field(
        "float",
        description="float: numbers. base64: a string of their bytes, little endian. binary: the response is a NumPy file "
        "(.npy), one row a text.",
    )
    embedding_type: EmbeddingType = Field(
        "float",
        description="Type of the numbers, made after `dimensions`. float: float32. int8, uint8: a byte each, by the ranges "
        "of /models. ubinary: a bit each, 1 if the number is over 0, eight to a byte; binary: the same less 128.",
    )
    vectors: Literal["dense", "tokens"] | None = Field(
        None,
        description="What the model gives: one vector for a text, or one for each token. Default: what it is.",
    )
    side: Literal["query", "document"] | None = Field(
        None, description="How token vectors are made: as a query's, or as a document's. Default: document."
    )
    truncate: Truncate = False
    model: ModelName = None


@complete
class EmbedResult(TypedDict):
    """A vector, of length 1 unless the model's own files leave it as it is; or vectors of tokens."""

    embedding: NotRequired[
        Annotated[
            list[float] | list[int] | str,
            Field(
                description="As many numbers as the model gives or `dimensions` says, or a string with base64; the example "
                "shows the first few. Left out for a model of token vectors."
            ),
        ]
    ]
    tokens: NotRequired[
        Annotated[
            list[list[float]] | str,
            Field(
                description="A vector for each token, or all of them in a string with base64, one after the other. Only for "
                "a model of token vectors."
            ),
        ]
    ]
    truncated: Truncated


class Embed(ServedTask[EmbedRequest]):
    """Turn texts into vectors, or their tokens, as the model does."""

    path, model_task = "/embed", "similarity"
    other_tasks = ("token_vectors",)
    request, result = EmbedRequest, EmbedResult
    order = "One result for each text, in order."
    has_file, form = True, "encoding_format"
    example = response_example(
        "similarity", 9, {"embedding": [0.00690308, -0.0630234, -0.072044], "truncated": False}
    )

    async def run(self, call: Call, request: EmbedRequest) -> Results:
        """Answer a request."""
        text, form = Texts.of("text", request.text), request.encoding_format
        call.check_count(text)
        if form == "binary" and call.needs_json:
            message = "is 'binary', which is not JSON: ask for 'float' or 'base64'"
            raise InvalidRequestError([FieldError("encoding_format", message)])
        _check_kind(call.model, request)
        if call.model.spec.token_vectors is not None:
            return await _of_tokens(call, text, request)
        text = prompted(text, call.model, request.prompt_name)
        convert = converter(call.model, request.embedding_type, request.dimensions)
        found = await embed(call, text, truncate=request.truncate, dimensions=request.dimensions)
        vectors = await call.decode(len(text), lambda: convert(found.vectors))
        embedded = replace(found, vectors=vectors)

        def rows(_: ListItems) -> Iterator[EmbedResult]:
            listed: Any = np.ascontiguousarray(vectors)
            shown = map(in_base64, listed) if form == "base64" else listed
            return (
                {"embedding": vector, "truncated": cut}
                for vector, cut in zip(shown, embedded.truncated, strict=True)
            )

        return Results(len(text), rows, INLINE_VECTORS, file=embedded if form == "binary" else None)

    def find(self, registry: Registry, name: str | None, request: EmbedRequest) -> Model:
        """Return the model of the name in a request, or the default one of the vectors that it asks for."""
        if name is None and request.vectors == "tokens":
            return registry.find(None, "token_vectors")
        return super().find(registry, name, request)

    def lacks(self, spec: TaskSpec) -> str:
        """Return the field of a result that a model does not give."""
        return "tokens" if spec.token_vectors is None else "embedding"


def _check_kind(model: Model, request: EmbedRequest) -> None:
    """Refuse vectors that a model does not give, and options of others."""
    gives, others = (
        ("dense", ("side",))
        if model.spec.token_vectors is None
        else ("tokens", ("prompt_name", "dimensions", "embedding_type"))
    )
    asked = {name: getattr(request, name) for name in ("vectors", *others)}
    errors = [
        FieldError(name, f"is {displayed(str(value))!r}; model {model.name!r} gives {gives}")
        for name, value in asked.items()
        if value not in (None, gives, "float")
    ]
    if errors:
        raise InvalidRequestError(errors)


async def _of_tokens(call: Call, text: Texts, request: EmbedRequest) -> Results:
    """Answer with a vector for each token."""
    form = request.encoding_format
    found = await embed_tokens(
        call,
        (text, request.side or "document"),
        truncate=request.truncate,
        number_bytes=NUMBER_BYTES_OF[form],
    )
    counts = [len(vectors) for vectors in found.vectors]

    def rows(_: ListItems) -> Iterator[EmbedResult]:
        for vectors, cut in zip(found.vectors, found.truncated, strict=True):
            shown: Any = in_base64(vectors) if form == "base64" else np.ascontiguousarray(vectors)
            yield {"tokens": shown, "truncated": cut}

    file = Embedded(joined(found.vectors), found.truncated, counts) if form == "binary" else None
    return Results(sum(counts), rows, INLINE_VECTORS, file=file)


def in_base64(vector: NDArray[Any]) -> str:
    """Return base64 of a vector's numbers, or of several vectors', little endian: of float32 as OpenAI does."""
    return b64encode(vector.astype(vector.dtype.newbyteorder("<"), copy=False).tobytes()).decode()
