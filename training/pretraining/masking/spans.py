"""Runs of whole words: SpanBERT's spans, and what n-grams share with them.

Joshi et al. 2019 (arXiv 1907.10529, 3.1): span lengths are geometric with p = 0.2, cut off at 10 words, 3.8 in the mean;
a span starts at a uniformly drawn token's word; [MASK], random or kept is drawn once for a span.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.errors import ConfigError
from training.pretraining.examples.text import ranges
from training.pretraining.masking.base import Chosen, Masking, MaskingBatch, Offsets
from training.pretraining.masking.counter_rng import LENGTH
from training.pretraining.masking.tokens import words

GEOMETRIC, MAX_WORDS = 0.2, 10
"""Parameter p of the span lengths, and the longest span."""


@dataclass(frozen=True)
class SpanMasking(Masking):
    """Spans of words with at least a word between two of them: the boundary objective predicts from the tokens beside.

    In the reference spans may touch, grow into one another, and end inside a word where the budget does.
    """

    shares: tuple[float, ...] = ()
    """Shares of spans of 1, 2, … words; empty for the geometric ones."""

    def __post_init__(self) -> None:
        if self.shares and not (min(self.shares) >= 0 and sum(self.shares) > 0):
            raise ConfigError(f"span_shares {list(self.shares)} must not be negative, and not all 0")

    @property
    def length_shares(self) -> NDArray[np.float64]:
        """Probabilities of spans of 1, 2, … words."""
        geometric = np.float64(GEOMETRIC) * (1 - GEOMETRIC) ** np.arange(MAX_WORDS)
        shares = np.array(self.shares, np.float64) if self.shares else geometric
        whole: NDArray[np.float64] = shares / shares.sum()
        return whole

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        anchors = batch.shuffled(np.flatnonzero(~batch.special))
        first, last = runs(batch, budgets, anchors, self.length_shares, apart=True)
        size = last - first
        spans = np.repeat(np.stack([first, last - 1], axis=1), size, axis=0)
        return Chosen(ranges(first, last), np.repeat(first, size), spans)


def runs(
    batch: MaskingBatch,
    budgets: Offsets,
    anchors: Offsets,
    length_shares: NDArray[np.float64],
    *,
    apart: bool = False,
) -> tuple[Offsets, Offsets]:
    """Return runs of whole words as flat first tokens and tokens after the last (R,), ascending.

    A run of 1, 2, … words, by `length_shares`, starts at each of the `anchors` (tokens in the order to try them). It ends
    early at a special token, at a taken word, and at one that would exceed the example's budget (B,). Runs that are `apart`
    have a word or a special token between them.
    """
    starts, stops = words(batch, ~batch.continues)
    word = (np.searchsorted(starts, anchors, side="right") - 1).tolist()
    drawn = np.searchsorted(np.cumsum(length_shares)[:-1], batch.uniform(anchors, LENGTH), side="right") + 1
    borders = np.searchsorted(batch.owner[anchors], np.arange(len(budgets) + 1)).tolist()
    lengths = [*(stops - starts).tolist(), 0]
    follows = [False, *(starts[1:] == stops[:-1]).tolist(), False]
    wanted = drawn.tolist()
    found: list[tuple[int, int]] = []
    for a, b, budget in zip(borders, borders[1:], budgets.tolist(), strict=False):
        found.extend(_runs(zip(word[a:b], wanted[a:b], strict=True), lengths, follows, budget, apart))
    pairs = np.array(sorted(found), np.int64).reshape(-1, 2)
    return starts[pairs[:, 0]], stops[pairs[:, 1] - 1]


def _runs(
    tries: Iterable[tuple[int, int]],
    lengths: Sequence[int],
    follows: Sequence[bool],
    budget: int,
    apart: bool,
) -> Iterator[tuple[int, int]]:
    """Yield one example's runs as first word and word after the last; `follows` says what continues the text."""
    taken: set[int] = set()
    for first, wanted in tries:
        word = first
        while word < first + wanted and word not in taken and lengths[word] <= budget:
            if word > first and not follows[word]:
                break
            budget -= lengths[word]
            word += 1
        if word > first:
            yield first, word
            taken.update(range(first - (apart and follows[first]), word + (apart and follows[word])))
        if not budget:
            return
