"""Vectors of texts: /embed."""

from base64 import b64encode
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bert.errors import FieldError, InvalidRequestError, displayed
from bert.graph_inputs import joined
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors import sparse
from service.engine.models import Floats, Model, Registry
from service.pipeline.inputs import Texts
from service.tasks.embedding_types import EmbeddingType, converter
from service.tasks.schema import (
    RESULT_BYTES,
    Dimensions,
    Example,
    ModelName,
    PromptName,
    Schema,
    Text,
    TopK,
    Truncate,
    Truncated,
    TypedDict,
    complete,
    text_size,
)
from service.tasks.sparse import (
    INLINE_WEIGHTS,
    Ints,
    Side,
    SparseVector,
    SparseVectors,
    Threshold,
    Wanted,
    pieces_of,
)
from service.tasks.task import (
    FLOAT_BYTES,
    NUMBER_BYTES,
    Call,
    Embedded,
    ListItems,
    Results,
    ServedTask,
    embed,
    embed_chunks,
    embed_tokens,
    prompted,
    response_example,
)

NUMBER_BYTES_OF = {"float": NUMBER_BYTES, "base64": FLOAT_BYTES * 4 / 3, "binary": FLOAT_BYTES}
"""Bytes of a number in each form."""
INLINE_VECTORS = 32
"""Maximum embeddings serialised on the event loop, within 0.5 ms."""
DENSE, SPARSE, TOKENS = "similarity", "sparse", "token_vectors"
KINDS = {DENSE: "dense", SPARSE: "sparse", TOKENS: "tokens"}
"""Models' task → their vectors, by the name that requests give them."""
FIELDS = {DENSE: "embedding", SPARSE: "sparse", TOKENS: "tokens"}
"""Models' task → the field of its results."""
OPTIONS = {
    **dict.fromkeys(("dimensions", "embedding_type", "late_chunking"), ("dense",)),
    **dict.fromkeys(("top_k", "threshold", "pieces"), ("sparse",)),
    "encoding_format": ("dense", "tokens"),
    "prompt_name": ("dense", "sparse"),
    "side": ("sparse", "tokens"),
}
"""Option → the vectors that have it."""


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
    late_chunking: bool = Field(
        False,
        strict=True,
        description="The texts are the chunks of one document, in order and with nothing between them: it is read in one "
        "run, and each chunk has the mean of its tokens. The document must not be longer than the model reads.",
    )
    vectors: Literal["dense", "sparse", "tokens"] | None = Field(
        None,
        description="What the model gives: one vector for a text, a weight for each piece of the vocabulary, or a vector "
        "for each token. Default: what it is.",
    )
    side: Side | None = Field(
        None,
        description="Token vectors are made as a query's, or as a document's. Sparse vectors of a query need no run where "
        "the model has a table of weights, else both are alike. Default: document.",
    )
    top_k: TopK | None = Field(
        None, description="Sparse vectors: the most weights of a text, the largest. Default: all."
    )
    threshold: Threshold | None = Field(None, description="Sparse vectors: only weights over it. Default: 0.")
    pieces: Annotated[bool, Field(strict=True)] = Field(
        False, description="Sparse vectors: give each piece as text too."
    )
    truncate: Truncate = False
    model: ModelName = None


@complete
class EmbedResult(TypedDict):
    """A vector of one text, in the field of its kind."""

    embedding: NotRequired[
        Annotated[
            list[float] | list[int] | str,
            Field(
                description="As many numbers as the model gives or `dimensions` says, or a string with base64; the example "
                "shows the first few. Only for a model of dense vectors."
            ),
        ]
    ]
    tokens: NotRequired[
        Annotated[
            list[list[float] | str],
            Field(
                description="A vector for each token: numbers, or a string with base64. Only for a model of token vectors."
            ),
        ]
    ]
    sparse: NotRequired[SparseVector]
    truncated: Truncated


class Embed(ServedTask[EmbedRequest]):
    """Turn texts into vectors, or their tokens, as the model does."""

    path, model_task, other_tasks = "/embed", DENSE, (SPARSE, TOKENS)
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
        check_kind(call.model, request)
        if call.model.task == SPARSE:
            return await _sparse(call, text, request)
        if call.model.spec.token_vectors is not None:
            return await _of_tokens(call, text, request)
        convert = converter(call.model, request.embedding_type, request.dimensions)
        options: dict[str, Any] = {"truncate": request.truncate, "dimensions": request.dimensions}
        if request.late_chunking:
            found = await embed_chunks(call, text, request.prompt_name, **options)
        else:
            found = await embed(call, prompted(text, call.model, request.prompt_name), **options)
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
        """Return the named model, or the default one for the vectors asked for; where none are, of any there is."""
        if name is not None and registry.find(name, None).task in KINDS:
            return registry.find(name, None)
        tasks = [task for task, kind in KINDS.items() if request.vectors in (None, kind)]
        return registry.find(name, next((task for task in tasks if task in registry.defaults), tasks[0]))

    def lacks(self, spec: TaskSpec) -> Collection[str]:
        """Return the fields of a result that a model does not give."""
        return {field for task, field in FIELDS.items() if task != spec.task}


def check_kind(model: Model, request: EmbedRequest) -> None:
    """Raise InvalidRequestError for vectors that a model does not give, and for options of others than its own."""
    gives = KINDS[model.task]
    others = [name for name, kinds in OPTIONS.items() if gives not in kinds]
    known = type(request).model_fields
    asked = {name: getattr(request, name) for name in others if getattr(request, name) != known[name].default}
    asked |= {} if request.vectors in (None, gives) else {"vectors": request.vectors}
    if asked:
        message = f"model {model.name!r} gives {gives.removesuffix('s')} vectors"
        lacks = {name: "" if name == "vectors" else f", which have no {name}" for name in asked}
        shown = {
            name: displayed(str(value).lower() if value is True else str(value))
            for name, value in asked.items()
        }
        raise InvalidRequestError(
            [FieldError(name, f"is {shown[name]!r}; {message}{lacks[name]}") for name in asked]
        )


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
            shown: Any = list(map(in_base64, vectors)) if form == "base64" else np.ascontiguousarray(vectors)
            yield {"tokens": shown, "truncated": cut}

    def in_file() -> Embedded:
        return Embedded(joined(found.vectors), found.truncated, counts)

    file = await call.decode(sum(counts), in_file) if form == "binary" else None
    return Results(sum(counts), rows, INLINE_VECTORS, file=file)


async def embed_sparse(
    call: Call, text: Texts, wanted: Wanted, *, prompt_name: str | None, side: Side, truncate: bool
) -> SparseVectors:
    """Return the sparse vector of each text; that of a query without a run where the model has a table of weights.

    Raises what `Call.encode_each` does, and InvalidRequestError for a response that would be too large.
    """
    model, table = call.model, call.model.query_weights if side == "query" else None
    encodings = await call.encode_each(prompted(text, model, prompt_name), truncate=truncate)
    outputs = await call.infer(encodings) if table is None else []
    if table is not None:
        call.context.lengths = [len(encoding) for encoding in encodings]
        call.context.tokens = sum(call.context.lengths)
        call.context.truncated = sum(encoding.truncated for encoding in encodings)

    def read() -> list[tuple[Ints, Floats]]:
        limits = wanted.top_k, wanted.threshold
        if table is None:
            return [sparse.decode(scores, model.spec, *limits) for scores in outputs]
        return [sparse.query(each.ids[each.sequence_ids >= 0], table, *limits) for each in encodings]

    vectors = await call.decode(len(text), read)
    weights = sum(len(indices) for indices, _ in vectors)
    size = len(text) * RESULT_BYTES + weights * wanted.weight_bytes
    call.note_size(text, size)
    rows: list[Any] = [{"indices": indices, "values": values} for indices, values in vectors]
    if wanted.pieces:
        names = await call.decode(weights, lambda: pieces_of(model.tokenizer, vectors))
        call.note_size(text, size + sum(text_size(piece) + 1 for row in names for piece in row))
        rows = [row | {"pieces": pieces} for row, pieces in zip(rows, names, strict=True)]
    return SparseVectors(rows, [encoding.truncated for encoding in encodings], weights)


async def _sparse(call: Call, text: Texts, request: EmbedRequest) -> Results:
    wanted = Wanted(request.top_k, request.threshold or 0.0, request.pieces)
    found = await embed_sparse(
        call,
        text,
        wanted,
        prompt_name=request.prompt_name,
        side=request.side or "document",
        truncate=request.truncate,
    )

    def rows(_: ListItems) -> Iterator[EmbedResult]:
        return (
            {"sparse": vector, "truncated": cut}
            for vector, cut in zip(found.rows, found.truncated, strict=True)
        )

    return Results(found.weights, rows, INLINE_WEIGHTS)


def in_base64(vector: NDArray[Any]) -> str:
    """Return base64 of a vector's numbers, or of several vectors', little endian: of float32 as OpenAI does."""
    return b64encode(vector.astype(vector.dtype.newbyteorder("<"), copy=False).tobytes()).decode()
