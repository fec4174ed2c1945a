"""Vectors of texts: /embed."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from bert.errors import FieldError, InvalidRequestError
from service.engine.models import Floats
from service.pipeline.inputs import Texts
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
        description="float: numbers. base64: a string of little-endian float32. binary: the response is a NumPy file "
        "(.npy) of float32, one row a text.",
    )
    truncate: Truncate = False
    model: ModelName = None


@complete
class EmbedResult(TypedDict):
    """A vector, of length 1 unless the model's own files leave it as it is."""

    embedding: Annotated[
        list[float] | str,
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
        embedded = await embed(call, text, truncate=request.truncate, dimensions=request.dimensions)

        def rows(_: ListItems) -> Iterator[EmbedResult]:
            vectors: Any = np.ascontiguousarray(embedded.vectors)
            shown = map(in_base64, vectors) if form == "base64" else vectors
            return (
                {"embedding": vector, "truncated": cut}
                for vector, cut in zip(shown, embedded.truncated, strict=True)
            )

        return Results(len(text), rows, INLINE_VECTORS, file=embedded if form == "binary" else None)


def in_base64(vector: Floats) -> str:
    """Return a vector as OpenAI does: base64 of float32, little endian."""
    return b64encode(vector.astype("<f4").tobytes()).decode()
