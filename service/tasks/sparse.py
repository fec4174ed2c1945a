"""Fields of requests and results that have sparse vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bert.tokenizer import Tokenizer
from service.engine.models import Floats
from service.tasks.schema import TypedDict, complete, number

WEIGHT_BYTES = 20
"""Bytes of an index and its weight in JSON, about."""
INLINE_WEIGHTS = 8192
"""Maximum weights serialised on the event loop, within 0.5 ms."""

Ints = NDArray[np.int32]
Side = Literal["query", "document"]
Threshold = Annotated[float, Field(ge=0), number("a number of at least 0", lambda value: 0 <= value < np.inf)]


@complete
class SparseVector(TypedDict):
    """The weights of a text that are over 0."""

    indices: Annotated[list[int], Field(description="Ids of the pieces of the vocabulary, ascending.")]
    values: Annotated[list[float], Field(description="Weight of each.")]
    pieces: NotRequired[
        Annotated[list[str], Field(description="Each piece as text, if `pieces` asks for it.")]
    ]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of a request: the weights of each vector that are returned."""

    top_k: int | None = None
    """Number of weights to keep, the largest; None keeps all."""
    threshold: float = 0.0
    """Bound that a weight must exceed."""
    pieces: bool = False
    """True adds the pieces as text."""
    weight_bytes: int = WEIGHT_BYTES
    """Estimated bytes of an index and its weight in the response."""


@dataclass(frozen=True, slots=True)
class SparseVectors:
    """Vectors of texts, and which texts were cut."""

    rows: Sequence[SparseVector]
    """`indices` and `values` are arrays (K,)."""
    truncated: list[bool]
    weights: int
    """Number of weights of all vectors."""


def pieces_of(tokenizer: Tokenizer, vectors: Sequence[tuple[Ints, Floats]]) -> list[list[str]]:
    """Return the pieces of each vector; "" for a row of the embedding without a piece."""
    ids = {index for indices, _ in vectors for index in indices.tolist()}
    names = {index: tokenizer.id_to_token(index) if tokenizer.has_id(index) else "" for index in ids}
    return [[names[index] for index in indices.tolist()] for indices, _ in vectors]
