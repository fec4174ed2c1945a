"""The engine's time by batch size: fits of it, and the batch sizes to use.

Throughput rises with the tokens of a batch until the cores are used well, then stays level. Past that knee a larger
batch only makes every text in it wait longer, so the token budget of a batch is the knee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bert.packing import DEFAULT_COST, CostModel
from service.scheduling.throughput import Throughput

MIN_BUDGET = 64
"""Minimum budget in tokens: a disturbed measurement must not make batches of single words."""
KNEE = 0.9
"""Share of the best throughput that defines the budget."""
FULL = 0.98
"""Share of the best throughput that defines a large batch, used under load."""
MIN_ATTENTION_WIDTH, MAX_ATTENTION_WIDTH, MAX_RUN_TOKENS = 50.0, 20_000.0, 100.0
"""Bounds of a fitted cost model, in tokens: a disturbed measurement must not give an absurd one."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Time of one batch size."""

    tokens: int
    seconds: float
    """Best time of several runs."""
    wall_s: float = 0.0
    """Mean wall time, other programs' work included; 0 if not measured."""

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput."""
        return self.tokens / self.seconds


def knee(curve: Sequence[CostPoint], share: float = KNEE) -> int:
    """Return the size in tokens of the smallest batch with this share of the best throughput, at least MIN_BUDGET."""
    best = max(point.tokens_per_s for point in curve)
    return max(MIN_BUDGET, min(point.tokens for point in curve if point.tokens_per_s >= share * best))


def fit_throughput(
    curve: Sequence[CostPoint], budget: int, slots: int, cost: CostModel | None = None
) -> Throughput:
    """Fit a line through the ends of one slot's cost curve, then learn from its wall times.

    Longer texts than the curve's cost more a token by `cost`, or as much without.
    """
    first, last = curve[0], curve[-1]
    token_s, overhead_s = last.seconds / last.tokens, 0.0
    if last.tokens > first.tokens and last.seconds > first.seconds:
        token_s = (last.seconds - first.seconds) / (last.tokens - first.tokens)
        overhead_s = max(0.0, first.seconds - first.tokens * token_s)
    throughput = Throughput(overhead_s, token_s, budget, slots, cost)
    for point in curve:
        if point.wall_s:
            throughput.learn(point.tokens, point.wall_s)
    return throughput


def fit_cost(
    curve: Sequence[CostPoint], text_tokens: int, wide: CostPoint, guess: CostModel = DEFAULT_COST
) -> CostModel | None:
    """Fit seconds = run + tokens * token + tokens * attended width * attention, by least squares of the relative errors.

    `curve` was measured in rows of `text_tokens`, `wide` with one text; `guess` knows which layers see a window.
    Returns None if the fit gives a token or attention no cost.
    """
    shapes = [(point.tokens, min(point.tokens, text_tokens)) for point in curve] + [
        (wide.tokens, wide.tokens)
    ]
    seconds = np.array([point.seconds for point in [*curve, wide]])
    terms = np.array([[1, tokens, tokens * guess.attended(width)] for tokens, width in shapes])
    terms /= seconds[:, None]
    run, token, attention = np.linalg.lstsq(terms, np.ones(len(seconds)))[0]
    if token <= 0 or attention <= 0:
        return None
    return fitted(guess, token / attention, run / token)


def fitted(guess: CostModel, attention_width: float, run_tokens: float) -> CostModel:
    """Return a guess with measured values, clamped to the bounds. Raises ValueError for NaN."""
    if math.isnan(attention_width) or math.isnan(run_tokens):
        raise ValueError("a cost model cannot hold NaN")
    return replace(
        guess,
        attention_width=min(max(float(attention_width), MIN_ATTENTION_WIDTH), MAX_ATTENTION_WIDTH),
        run_tokens=min(max(float(run_tokens), 0.0), MAX_RUN_TOKENS),
    )
