"""Runs of whole words: ALBERT's n-grams (Lan et al. 2019, arXiv 1909.11942), which MacBERT takes over."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.pretraining.examples.text import ranges
from training.pretraining.masking.base import Chosen, Masking, MaskingBatch, Offsets
from training.pretraining.masking.spans import check_shares, drawn_lengths
from training.pretraining.masking.tokens import words


@dataclass(frozen=True)
class NGramMasking(Masking):
    """N-grams of whole words as google-research/albert draws them; each piece has its own draw of its replacement.

    Words are tried in random order, each as the first of an n-gram of random length. One that would exceed the budget is
    shortened by words until it fits. One with a taken word is skipped. There n-grams may go on over a [SEP].
    """

    usual_shares: ClassVar[tuple[float, ...]] = (6 / 11, 3 / 11, 2 / 11)
    """Shares of n-grams of 1, 2 and 3 words: n has a probability proportional to 1/n."""
    shares: tuple[float, ...] = ()
    """Shares of n-grams of 1, 2, … words; empty for the usual ones."""

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        positions, _ = self._ngrams(batch, budgets)
        return Chosen(positions, positions)

    def _ngrams(self, batch: MaskingBatch, budgets: Offsets) -> tuple[Offsets, Offsets]:
        """Return the positions of all n-grams (M,), ascending, and the first position of each one's word (M,)."""
        starts, stops = words(batch, ~batch.continues)
        ends = np.flatnonzero(np.append(starts[1:] != stops[:-1], True))  # last word of each running text
        last = ends[np.searchsorted(ends, np.arange(len(starts)))].tolist()
        order = batch.shuffled(starts)
        shares = np.array(self.shares or self.usual_shares)
        wanted = drawn_lengths(batch, order, shares / shares.sum())
        first = np.searchsorted(starts, order).tolist()
        borders = np.searchsorted(batch.owner[starts], np.arange(len(budgets) + 1)).tolist()
        begin, end = starts.tolist(), stops.tolist()
        found: list[int] = []
        for a, b, budget in zip(borders, borders[1:], budgets.tolist(), strict=False):
            tries = zip(first[a:b], wanted[a:b], strict=True)
            found.extend(_words_of(tries, begin, end, last, budget))
        chosen = np.sort(np.array(found, np.int64))
        size = stops[chosen] - starts[chosen]
        return ranges(starts[chosen], stops[chosen]), np.repeat(starts[chosen], size)


def _words_of(
    tries: Iterable[tuple[int, int]],
    begin: Sequence[int],
    end: Sequence[int],
    last: Sequence[int],
    budget: int,
) -> Iterator[int]:
    """Yield the words of one example's n-grams; `begin`, `end` and `last` are of each word."""
    taken: set[int] = set()
    for first, wanted in tries:
        stop = min(first + wanted, last[first] + 1)
        while stop > first and end[stop - 1] - begin[first] > budget:
            stop -= 1
        ngram = range(first, stop)
        if stop == first or not taken.isdisjoint(ngram):
            continue
        yield from ngram
        taken.update(ngram)
        budget -= end[stop - 1] - begin[first]
        if not budget:
            return
