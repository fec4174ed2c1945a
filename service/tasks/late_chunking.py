"""Late chunking: a document is read in one run, and the vectors of its tokens are averaged chunk by chunk."""

import numpy as np

from bert.encoding import Encoding, Ints
from bert.errors import FieldError, InvalidRequestError
from bert.tasks.vectors.similarity import first_numbers
from service.pipeline.inputs import Texts
from service.tasks.schema import RESULT_BYTES
from service.tasks.task import NUMBER_BYTES, Call, Embedded, check_dimensions, prompted


async def embed_chunks(
    call: Call,
    chunks: Texts,
    prompt_name: str | None = None,
    *,
    truncate: bool = False,
    dimensions: int | None = None,
) -> Embedded:
    """Return a vector for each of the texts, which are a document's chunks in their order, with nothing between them.

    A token belongs to the chunk in which it begins, [CLS] and the prompt to the first one, [SEP] to the last. Raises
    InvalidRequestError for a document over the model's length, a chunk without a token, and a model that cannot do it.
    """
    model = call.model
    if not model.bundle.manifest.reads_chunks:
        kind = "its bundle is for a GPU, or older than that: export it again for the CPU"
        if model.spec.pooling != "mean":
            kind = f"it pools by {model.spec.pooling}"
        message = (
            f"is true, and needs a model that averages its tokens; model {model.name!r} does not: {kind}"
        )
        raise InvalidRequestError([FieldError("late_chunking", message)])
    if truncate:
        message = "is true, and a document that is cut has chunks without a vector: send fewer chunks"
        raise InvalidRequestError([FieldError("truncate", message)])
    check_dimensions(model, dimensions)
    numbers = dimensions or model.embedding_size or 0
    call.note_size(chunks, len(chunks) * (RESULT_BYTES + numbers * NUMBER_BYTES))
    document = prompted(Texts(chunks.name, ["".join(chunks.values)], False), model, prompt_name)
    ends = np.cumsum([len(each) for each in chunks.values])
    ends += len(document.values[0]) - ends[-1]  # of the prompt
    (encoding,) = await call.encode_each(document, truncate=False)
    encoding.chunk_starts = await call.pipeline.run_in_thread(lambda: _starts(encoding, chunks, ends))
    (vectors,) = await call.infer([encoding])
    if dimensions is not None:
        vectors = first_numbers(vectors, dimensions, model.spec)
    return Embedded(vectors, [False] * len(chunks))


def _starts(encoding: Encoding, chunks: Texts, ends: Ints) -> Ints:
    """Return the first token (C,) of each chunk; `ends` (C,) are those of the chunks in the text, in code points."""
    begins = ends - [len(each) for each in chunks.values]
    first, after = (1 + np.searchsorted(encoding.offsets[1:-1, 0], places) for places in (begins, ends))
    empty = np.flatnonzero(first == after)[:20].tolist()
    if empty:
        message = "has no token of its own: join it with the chunk beside it"
        raise InvalidRequestError([FieldError(chunks.where(index), message) for index in empty])
    first[0] = 0
    return first.astype(np.int32)
