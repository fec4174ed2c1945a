"""Chunks of a document that is read in one run (late chunking)."""

import numpy as np

from bert.encoding import Encoding, Ints
from bert.errors import FieldError, InvalidRequestError
from service.engine.models import Model
from service.pipeline.inputs import Texts


def check_chunks(model: Model, *, truncate: bool) -> None:
    """Raise InvalidRequestError for a model that cannot average the tokens of each chunk, and for `truncate`."""
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


def chunk_starts(encoding: Encoding, chunks: Texts, prompt: int) -> Ints:
    """Return the first token (C,) of each chunk of a document, which has `prompt` characters before them.

    Raises InvalidRequestError for a chunk in which no token begins.
    """
    bounds = np.cumsum([prompt, *map(len, chunks.values)])
    tokens = 1 + np.searchsorted(encoding.offsets[1:-1, 0], bounds)
    empty = np.flatnonzero(tokens[:-1] == tokens[1:])[:20].tolist()
    if empty:
        message = "has no token of its own: join it with the chunk beside it"
        raise InvalidRequestError([FieldError(chunks.where(index), message) for index in empty])
    return np.array([0, *tokens[1:-1]], np.int32)
