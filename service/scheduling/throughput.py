"""Estimate of how fast a model's batches run, corrected by the batches themselves. Pure.

A batch takes `overhead_s` plus `token_s` per token, times a learned factor: measured over estimated seconds of recent
batches. The factor is learned rather than tokens per second, because a batch of one short text has few tokens: a quiet
evening must not make the service think itself slow.
"""

import math
from dataclasses import dataclass, field

from bert.packing import TEXT_TOKENS, CostModel

MEMORY_S = 5.0
"""Engine seconds after which a measurement counts a third: long enough to absorb one slow batch, short enough to follow a
machine that becomes busy."""
MAX_STALL = 10.0
"""Largest measured time of a batch that counts, over its estimate: a process that was stopped for a minute must not
refuse every request of the next."""
CURVE_WEIGHT_S = 0.1
"""Seconds of batches that the cost curve counts for."""


@dataclass(slots=True)
class Throughput:
    """Throughput of one model on all engine slots.

    Times are those of texts of TEXT_TOKENS tokens. `work` turns a longer text into as many tokens of these as take as long.
    """

    overhead_s: float
    token_s: float
    budget: int
    """Tokens of a full batch."""
    slots: int = 1
    cost: CostModel | None = None
    """Cost of a token by the length of its text; None: all cost the same."""
    tokens_per_s: float = field(init=False)
    """Tokens per second of all slots in full batches; stored, as each request asks for it several times."""
    _estimated_s: float = CURVE_WEIGHT_S
    _measured_s: float = CURVE_WEIGHT_S

    def __post_init__(self) -> None:
        """Derive `tokens_per_s`."""
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    def work(self, tokens: int) -> float:
        """Return how many tokens of short texts take as long as one text of so many."""
        if self.cost is None or tokens <= TEXT_TOKENS:
            return tokens
        return tokens * self.cost.token(tokens) / self.cost.token(TEXT_TOKENS)

    def learn(self, tokens: float, seconds: float) -> None:
        """Learn from a batch that ran on one slot."""
        estimated_s = self._estimate(tokens)
        measured_s = min(max(seconds, 1e-6), MAX_STALL * estimated_s * self._factor)
        decay = math.exp(-measured_s / MEMORY_S)
        self._estimated_s = decay * self._estimated_s + estimated_s
        self._measured_s = decay * self._measured_s + measured_s
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    @property
    def batch_s(self) -> float:
        """Return the seconds of a full batch on one slot."""
        return self.seconds(self.budget)

    def seconds(self, tokens: float) -> float:
        """Return the seconds of a batch on one slot."""
        return self._estimate(tokens) * self._factor

    @property
    def _factor(self) -> float:
        """Return how much slower recent batches were than the cost curve says."""
        return self._measured_s / self._estimated_s

    def _estimate(self, tokens: float) -> float:
        return self.overhead_s + self.token_s * tokens
