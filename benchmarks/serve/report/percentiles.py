"""Percentiles of one run, and the middle and the spread of several."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the least of the sorted values that at least this share of them does not pass (the nearest rank).

    Of fewer values than 1 / (1 - share) it is the largest. Raises ValueError where there are none.
    """
    if not ordered or not 0 < share <= 1:
        raise ValueError(f"share ({share}) must be in (0, 1], of at least one value ({len(ordered)})")
    rank = math.ceil(round(share * len(ordered), 9))
    return ordered[rank - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The same figure over several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the median and the range; raises ValueError where there are no values."""
        if not values:
            raise ValueError("there must be at least one value")
        return cls(statistics.median(values), min(values), max(values))

    def text(self, decimals: int = 0) -> str:
        """Return "median (least-most)", or the one value where all print alike."""
        median, least, most = (f"{value:.{decimals}f}" for value in (self.median, self.least, self.most))
        return median if least == most else f"{median} ({least}-{most})"
