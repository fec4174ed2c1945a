"""SpanBERT's spans of whole words.

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

    Their number is that of facebookresearch/SpanBERT, `masking.py`: `rate` of the text's tokens, special ones not
    counted, rounded up. In that code spans may touch, grow into one another, and end inside a word where the budget does.
    """

    shares: tuple[float, ...] = ()
    """Shares of spans of 1, 2, … words; empty for the geometric ones."""

    def __post_init__(self) -> None:
        check_shares(self.shares)

    @property
    def length_shares(self) -> NDArray[np.float64]:
        """Probabilities of spans of 1, 2, … words."""
        geometric = np.float64(GEOMETRIC) * (1 - GEOMETRIC) ** np.arange(MAX_WORDS)
        shares = np.array(self.shares, np.float64) if self.shares else geometric
        whole: NDArray[np.float64] = shares / shares.sum()
        return whole

    def _budgets(self, batch: MaskingBatch) -> Offsets:
        text = np.bincount(batch.owner[~batch.special], minlength=len(batch.lengths))
        return self._bounded(np.ceil(text * self.rate).astype(np.int64))

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        anchors = batch.shuffled(np.flatnonzero(~batch.special))
        first, last = _spans(batch, budgets, anchors, self.length_shares)
        size = last - first
        spans = np.repeat(np.stack([first, last - 1], axis=1), size, axis=0)
        return Chosen(ranges(first, last), np.repeat(first, size), spans)


def check_shares(shares: Sequence[float]) -> None:
    """Raise ConfigError for shares that are no probabilities; none at all are right."""
    if shares and not (min(shares) >= 0 and sum(shares) > 0):
        raise ConfigError(f"span_shares {list(shares)} must not be negative, and not all 0")


def drawn_lengths(batch: MaskingBatch, tokens: Offsets, shares: NDArray[np.float64]) -> list[int]:
    """Draw a number of words, 1 and up by `shares`, for each of some tokens."""
    drawn = np.searchsorted(np.cumsum(shares)[:-1], batch.uniform(tokens, LENGTH), side="right") + 1
    lengths: list[int] = drawn.tolist()
    return lengths


def _spans(
    batch: MaskingBatch, budgets: Offsets, anchors: Offsets, shares: NDArray[np.float64]
) -> tuple[Offsets, Offsets]:
    """Return spans as flat first tokens and tokens after the last (R,), ascending.

    A span starts at the word of each of the `anchors` (tokens in the order to try them). It ends early at a special token,
    at a taken word, and at one that would exceed the example's budget (B,).
    """
    starts, stops = words(batch, ~batch.continues)
    word = (np.searchsorted(starts, anchors, side="right") - 1).tolist()
    borders = np.searchsorted(batch.owner[anchors], np.arange(len(budgets) + 1)).tolist()
    lengths = [*(stops - starts).tolist(), 0]
    follows = [False, *(starts[1:] == stops[:-1]).tolist(), False]
    wanted = drawn_lengths(batch, anchors, shares)
    found: list[tuple[int, int]] = []
    for a, b, budget in zip(borders, borders[1:], budgets.tolist(), strict=False):
        found.extend(_spans_of(zip(word[a:b], wanted[a:b], strict=True), lengths, follows, budget))
    pairs = np.array(sorted(found), np.int64).reshape(-1, 2)
    return starts[pairs[:, 0]], stops[pairs[:, 1] - 1]


def _spans_of(
    tries: Iterable[tuple[int, int]], lengths: Sequence[int], follows: Sequence[bool], budget: int
) -> Iterator[tuple[int, int]]:
    """Yield one example's spans as first word and word after the last; `follows` says what continues the text."""
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
            taken.update(range(first - follows[first], word + follows[word]))
        if not budget:
            return
