"""Vectors of texts: /embed."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from bert.encoding import Encoding
from bert.errors import FieldError, InvalidRequestError, displayed
from bert.graph_inputs import joined
from bert.tasks import similarity
from service.engine.engine_protocol import Floats
from service.engine.models import Model
from service.pipeline.inputs import Texts
from service.pipeline.pipeline import RESULT_BYTES, Call
from service.pipeline.tokenization import encode_fields
from service.tasks.schema import (
    Example,
    ModelName,
    Schema,
    Text,
    Truncate,
    Truncated,
    TypedDict,
    complete,
    whole,
)
from service.tasks.task import Embedded, ListItems, Results, ServedTask, response_example

INLINE_VECTORS = 32
"""Maximum embeddings serialised on the event loop, within 0.5 ms."""
NUMBER_BYTES = 12
"""Bytes of one number of a vector in JSON, about."""
PromptName = Annotated[
    str | None,
    Field(
        description="Name of the model's prompt that goes before each text, see /models. Default: the model's default "
        'prompt; "" is no prompt.'
    ),
]
Dimensions = Annotated[int, Field(ge=1), whole(1)]


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


async def embed(
    call: Call, *fields: Texts, truncate: bool, dimensions: int | None = None, shown: bool = True
) -> Embedded:
    """Return a vector for each text of the first field, then of the next: its first `dimensions` numbers, or all.

    Without `shown` the vectors are only compared: the response does not hold them, and its size is not noted.
    """
    model = call.model
    check_dimensions(model, dimensions)
    if shown:
        numbers = dimensions or model.embedding_size or 0
        call.note_size(fields[0], sum(map(len, fields)) * (RESULT_BYTES + numbers * NUMBER_BYTES))
    tokenizer = call.tokenizer(only_ids=True)
    with call.context.timed("tokenize"):
        encodings: Sequence[Encoding] = await encode_fields(tokenizer, model, fields, truncate=truncate)
    vectors = joined(await call.infer(encodings))
    if dimensions is not None:
        vectors = similarity.first_numbers(vectors, dimensions, model.spec)
    return Embedded(vectors, [encoding.truncated for encoding in encodings])


def in_base64(vector: Floats) -> str:
    """Return a vector as OpenAI does: base64 of float32, little endian."""
    return b64encode(vector.astype("<f4").tobytes()).decode()


def prompted(texts: Texts, model: Model, name: str | None, field: str = "prompt_name") -> Texts:
    """Return the texts with the model's prompt of that name before each; None takes the model's default, "" none.

    Raises InvalidRequestError for a name that the model does not have.
    """
    prompts = model.spec.prompts
    name = model.spec.default_prompt_name if name is None else name
    if not name:
        return texts
    if name not in prompts:
        known = f"its prompts are {', '.join(prompts)}" if prompts else "it has none"
        raise InvalidRequestError(
            [FieldError(field, f"model {model.name!r} has no prompt {name!r}; {known}")]
        )
    return replace(texts, values=[prompts[name] + value for value in texts.values])


def check_dimensions(model: Model, dimensions: int | None) -> None:
    """Refuse more numbers than the model's vectors have, and fewer than one."""
    size = model.embedding_size or 0
    if dimensions is not None and not 1 <= dimensions <= size:
        message = (
            f"is {displayed(str(dimensions))}, and model {model.name!r} gives {size}: ask for 1 to {size}"
        )
        raise InvalidRequestError([FieldError("dimensions", message)])
