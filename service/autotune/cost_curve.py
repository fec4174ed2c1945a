"""The engine's time by batch size, and the batch sizes to use.

Throughput rises with the tokens of a batch until the cores are used well, then stays. Past that knee a larger batch
only makes everyone in it wait longer, so the token budget of a batch is the knee.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_BUDGET = 64
"""Minimum budget in tokens: a disturbed measurement must not make batches of single words."""
KNEE = 0.9
"""Share of the best throughput that defines the budget."""
FULL = 0.98
"""Share of the best throughput that defines a full batch, used under load."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Time of one batch size."""

    tokens: int
    seconds: float
    """Best time of some runs."""
    wall_s: float = 0.0
    """Mean wall time, other programs' work included; 0 if not measured."""

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput."""
        return self.tokens / self.seconds


def knee(curve: Sequence[CostPoint], share: float = KNEE) -> int:
    """Return the tokens of the smallest batch with this share of the best throughput, at least MIN_BUDGET."""
    best = max(point.tokens_per_s for point in curve)
    return max(MIN_BUDGET, min(point.tokens for point in curve if point.tokens_per_s >= share * best))
