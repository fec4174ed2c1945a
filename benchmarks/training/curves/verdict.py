"""Comparison of two sides by the spread of their seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOST_ERRORS = 2.0
"""Most standard errors between two means that count as the same."""


@dataclass(frozen=True)
class Comparison:
    """A number of both sides, over the same seeds in the same order."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def difference(self) -> float:
        """Mean of ours minus mean of theirs."""
        return statistics.mean(self.ours) - statistics.mean(self.theirs)

    @property
    def standard_error(self) -> float:
        """Standard error of the difference of two means, from the spread over seeds of each side."""
        spreads = statistics.variance(self.ours) + statistics.variance(self.theirs)
        return math.sqrt(spreads / len(self.ours))

    @property
    def is_noise(self) -> bool:
        """True where the difference is within MOST_ERRORS standard errors."""
        return abs(self.difference) <= MOST_ERRORS * self.standard_error

    @property
    def largest_of_a_seed(self) -> float:
        """Largest difference between the two sides of one seed."""
        return max(abs(a - b) for a, b in zip(self.ours, self.theirs, strict=True))
