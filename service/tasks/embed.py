"""Vectors of texts: /embed."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bert.errors import FieldError, InvalidRequestError
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
from service.tasks.task import Call, ListItems, Results, ServedTask, embed, prompted, response_example

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
    truncate: Truncate = False
    model: ModelName = None


@complete
class EmbedResult(TypedDict):
    """A vector, of length 1 unless the model's own files leave it as it is."""

    embedding: Annotated[
        list[float] | list[int] | str,
        Field(
            description="As many numbers as the model gives or `dimensions` says, or a string with base64; the example "
            "shows the first few."
        ),
    ]
    truncated: Truncated


class Embed(ServedTask[EmbedRequest]):
    """Turn texts into vectors."""

    path, model_task = "/embed", "similarity"
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


def in_base64(vector: NDArray[Any]) -> str:
    """Return base64 of a vector's numbers, little endian: of float32 as OpenAI does."""
    return b64encode(vector.astype(vector.dtype.newbyteorder("<"), copy=False).tobytes()).decode()
