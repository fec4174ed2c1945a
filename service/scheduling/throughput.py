"""How fast a model's batches run: first what its cost curve said, then what the batches themselves took. Pure.

A batch takes `overhead_s` and `token_s` for each token, times a factor that is learned: the seconds that batches
took over those foreseen, in the last MEMORY_S of the engine's time. What is learned is the factor and not tokens
per second, because a batch of one short text has few of those, and an evening of single texts must not make the
service think itself slow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from service.autotune.cost_curve import CostPoint

MEMORY_S = 5.0
"""Engine seconds after which a measurement counts a third: a batch that was held up does little, a machine that
became busy is noticed."""
STALL = 10.0
"""A batch counts at most so many times what it should have taken: a process that was stopped for a minute must not
refuse everybody for the next."""
FIRST_GUESS_S = 0.1
"""The cost curve counts like so many seconds of batches."""


@dataclass(slots=True)
class Speed:
    """The speed of one model on all engine slots. `budget` is the tokens of a full batch."""

    overhead_s: float
    token_s: float
    budget: int
    slots: int = 1
    tokens_per_s: float = field(init=False)
    """Of all slots together, in full batches. Kept, as each request asks for it several times."""
    _foreseen_s: float = FIRST_GUESS_S
    _took_s: float = FIRST_GUESS_S

    def __post_init__(self) -> None:
        """Work out what follows from the rest."""
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    @classmethod
    def of(cls, curve: Sequence[CostPoint], budget: int, slots: int) -> Self:
        """Draw a line through the ends of a cost curve of one slot, and learn from what it took by the wall."""
        first, last = curve[0], curve[-1]
        token_s, overhead_s = last.seconds / last.tokens, 0.0
        if last.tokens > first.tokens and last.seconds > first.seconds:
            token_s = (last.seconds - first.seconds) / (last.tokens - first.tokens)
            overhead_s = max(0.0, first.seconds - first.tokens * token_s)
        speed = cls(overhead_s, token_s, budget, slots)
        for point in curve:
            if point.wall_s:
                speed.learn(point.tokens, point.wall_s)
        return speed

    def learn(self, tokens: int, seconds: float) -> None:
        """Take notice of a batch that ran on one slot."""
        foreseen_s = self._foresee(tokens)
        took_s = min(max(seconds, 1e-6), STALL * foreseen_s * self._factor)
        kept = math.exp(-took_s / MEMORY_S)
        self._foreseen_s = kept * self._foreseen_s + foreseen_s
        self._took_s = kept * self._took_s + took_s
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    @property
    def batch_s(self) -> float:
        """Return the seconds of a full batch on its slot."""
        return self.seconds(self.budget)

    def seconds(self, tokens: int) -> float:
        """Return the seconds of a batch on its slot."""
        return self._foresee(tokens) * self._factor

    @property
    def _factor(self) -> float:
        """How much slower batches lately were than the cost curve said."""
        return self._took_s / self._foreseen_s

    def _foresee(self, tokens: int) -> float:
        return self.overhead_s + self.token_s * tokens
