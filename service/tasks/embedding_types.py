"""The number types of embeddings: which a model gives, and the way from its vectors to them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from numpy.typing import NDArray

from bert.errors import FieldError, InvalidRequestError
from bert.tasks.vectors.output_types import CODED, LEAST_PACKED, PACKED, Ranges, converted
from service.engine.models import Floats, Model

EmbeddingType = Literal["float", "float16", "int8", "uint8", "binary", "ubinary"]
Converter = Callable[[Floats], NDArray[Any]]


def converter(
    model: Model, kind: str, dimensions: int | None = None, field: str = "embedding_type"
) -> Converter:
    """Return what makes numbers of a type of vectors (N, D), which keep `dimensions` numbers.

    Raises InvalidRequestError, which names `field`, for a type that makes no sense of so few, or that needs ranges which the
    bundle does not have.
    """
    size = dimensions or model.embedding_size or 0
    if kind in PACKED and size < LEAST_PACKED:
        message = (
            f"is {kind!r}, which packs eight numbers into a byte, and the vector has {size}: ask for at least "
            f"{LEAST_PACKED} numbers, or for another type"
        )
        raise InvalidRequestError([FieldError(field, message)])
    found = model.bundle.manifest.embedding_ranges
    if kind in CODED and not found:
        message = (
            f"is {kind!r}, and the bundle of model {model.name!r} has no ranges of its numbers: export the checkpoint "
            "again with bert-export, without --parity-texts few; what bert-serve --model exports first is replaced by a "
            "bundle that has them"
        )
        raise InvalidRequestError([FieldError(field, message)])
    return partial(converted, kind=kind, ranges=Ranges.from_dict(found) if kind in CODED else None)
