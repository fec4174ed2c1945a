"""Types of the numbers of embeddings: floats, codes of one byte, bits. N texts, H width, D numbers that are kept.

Codes and bits are those of sentence-transformers' `quantize_embeddings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.tasks.task import Floats

DTYPES = {"float": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}
"""Type → numpy's name of its numbers."""
CODED = ("int8", "uint8")
"""Types that need the ranges of a model's numbers."""
PACKED = ("binary", "ubinary")
"""Types of one bit a number, eight to a byte."""
LEAST_PACKED = 8
"""Numbers that fill one byte; the padding of fewer bits would be most of it."""
_STEPS = 255
_DIGITS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Smallest and largest number of each dimension (H,), among the vectors of calibration texts.

    Of a model whose vectors have length 1, the first D numbers of a vector are divided by their length, and so have length 1
    again. `lengths` (H,) has the mean of those lengths for each D, by which ranges are divided. It is empty for a model of
    vectors of any length.
    """

    low: Floats
    high: Floats
    lengths: Floats

    @classmethod
    def of(cls, vectors: Floats, *, normalize: bool) -> "Ranges":
        """Measure vectors (N, H) of calibration texts."""
        lengths = np.sqrt(np.cumsum(np.square(vectors), axis=1)).mean(axis=0) if normalize else vectors[0, :0]
        return cls(vectors.min(axis=0), vectors.max(axis=0), lengths)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ranges":
        """Build from a manifest's `embedding_ranges`, which has checked them."""
        return cls(*(np.array(values[name], np.float32) for name in ("low", "high", "lengths")))

    def to_dict(self) -> dict[str, list[float]]:
        """Return the numbers as JSON has them."""
        named = {"low": self.low, "high": self.high, "lengths": self.lengths}
        return {
            name: [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
            for name, values in named.items()
        }

    def of_first(self, dimensions: int) -> tuple[Floats, Floats]:
        """Return the smallest and the largest numbers (D,) of vectors that keep so many."""
        low, high = self.low[:dimensions], self.high[:dimensions]
        if dimensions == len(self.low) or not self.lengths.size:
            return low, high
        length = max(self.lengths[dimensions - 1], 1e-12)
        return np.maximum(low / length, -1), np.minimum(high / length, 1)


def converted(vectors: Floats, kind: str, ranges: Ranges | None = None) -> NDArray[Any]:
    """Return vectors (N, D) in numbers of a type, else float32: (N, D), or in bits (N, ceil(D / 8)); CODED need `ranges`.

    A code counts steps of 1/255 of the range of its dimension: 0 to 255, in int8 less 128. A bit is 1 for a number over 0;
    the first number is the highest bit, and the last byte is filled up with 0.
    """
    if kind in PACKED:
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if kind == "ubinary" else (packed ^ 0x80).view(np.int8)  # less 128
    if kind in CODED:
        assert ranges is not None
        low, high = ranges.of_first(vectors.shape[-1])
        steps = (high - low) / _STEPS
        steps = np.where(steps == 0, 1, steps)
        codes = np.clip(np.floor((vectors - low) / steps), 0, _STEPS).astype(np.uint8)
        return codes if kind == "uint8" else (codes ^ 0x80).view(np.int8)
    if kind == "float16":  # a number past its largest would be infinite, which JSON does not have
        most = np.finfo(np.float16).max
        vectors = np.clip(vectors, -most, most)
    return vectors.astype(DTYPES.get(kind, "<f4"), copy=False)
