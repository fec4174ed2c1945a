"""Single pieces, whole words, and runs of whole words. W words of a batch, R runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert.errors import ConfigError
from training.pretraining.examples.base import Bools
from training.pretraining.examples.text import ranges
from training.pretraining.masking.base import LENGTH, Chosen, Masking, MaskingBatch, Offsets

GEOMETRIC, MAX_WORDS = 0.2, 10
"""Parameter p of the span lengths, and the longest span."""


@dataclass(frozen=True)
class TokenMasking(Masking):
    """Single pieces: the paper's masking, or with `weights` of pieces that of DistilBERT (arXiv 1910.01108) and XLM."""

    weights: NDArray[np.float64] | None = None
    """(V,) weight of each piece in the draw, 0 for one that is never chosen; None for equal chances."""

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        candidates = np.flatnonzero(~batch.special)
        if self.weights is None:
            order = batch.shuffled(candidates)
        else:
            weights = self.weights[batch.ids[candidates]]
            order = batch.shuffled(candidates[weights > 0], weights[weights > 0])
        owner = batch.owner[order]
        # owner is ascending: a candidate's place in its example is how far it is from the example's first.
        place = np.arange(len(order)) - np.searchsorted(owner, np.arange(len(budgets)))[owner]
        positions = np.sort(order[place < budgets[owner]])
        return Chosen(positions, positions)


@dataclass(frozen=True)
class RunMasking(Masking):
    """Runs of whole words, each of a random number of words."""

    usual_shares: ClassVar[tuple[float, ...]]
    """Shares of runs of 1, 2, … words."""
    apart: ClassVar[bool] = False
    """True for runs with at least a word between two of them, which end before a taken word; else such a run is skipped."""
    shares: tuple[float, ...] = ()
    """Shares of runs of 1, 2, … words; empty for the usual ones."""

    def __post_init__(self) -> None:
        """Raise ConfigError for shares that are no probabilities."""
        if self.shares and not (min(self.shares) >= 0 and sum(self.shares) > 0):
            raise ConfigError(f"span_shares {list(self.shares)} must not be negative, and not all 0")

    @property
    def length_shares(self) -> NDArray[np.float64]:
        """Probabilities of runs of 1, 2, … words."""
        shares = np.array(self.shares or self.usual_shares)
        whole: NDArray[np.float64] = shares / shares.sum()
        return whole

    def _runs(
        self, batch: MaskingBatch, budgets: Offsets, starts: Offsets, stops: Offsets, tries: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Return runs as first words and words after the last (R,), ascending, in all at most `budgets` tokens an example.

        `starts` and `stops` are those of all words (W,); `tries` are tokens, at whose words runs begin, in the order to try.
        """
        first = (np.searchsorted(starts, tries, side="right") - 1).tolist()
        drawn = batch.uniform(tries, LENGTH)
        wanted = np.searchsorted(np.cumsum(self.length_shares)[:-1], drawn, side="right") + 1
        begun = list(zip(first, wanted.tolist(), strict=True))
        borders = np.searchsorted(batch.owner[tries], np.arange(len(budgets) + 1)).tolist()
        sizes = [*(stops - starts).tolist(), 0]
        follows = [False, *(starts[1:] == stops[:-1]).tolist(), False]
        found: list[tuple[int, int]] = []
        for a, b, budget in zip(borders, borders[1:], budgets.tolist(), strict=False):
            found.extend(_fitting(begun[a:b], sizes, follows, budget, apart=self.apart))
        runs = np.array(sorted(found), np.int64).reshape(-1, 2)
        return runs[:, 0], runs[:, 1]


def _fitting(
    tries: Iterable[tuple[int, int]],
    sizes: Sequence[int],
    follows: Sequence[bool],
    budget: int,
    *,
    apart: bool,
) -> Iterator[tuple[int, int]]:
    """Yield one example's runs as first word and word after the last, of tries as first word and wanted number of words.

    A run ends early at a special token, and at a word that would exceed the budget; `follows` says what continues the text.
    """
    taken: set[int] = set()
    for first, wanted in tries:
        word, used = first, 0
        while word < first + wanted and (word == first or follows[word]) and used + sizes[word] <= budget:
            if apart and word in taken:
                break
            used += sizes[word]
            word += 1
        run = range(first, word)
        if not run or not taken.isdisjoint(run):
            continue
        yield first, word
        taken.update(range(first - follows[first], word + follows[word]) if apart else run)
        budget -= used
        if not budget:
            return


@dataclass(frozen=True)
class NGramMasking(RunMasking):
    """N-grams of whole words as google-research/albert draws them; each piece has its own draw of its replacement.

    Lan et al. 2019, arXiv 1909.11942. Words are tried in random order, each as the first of an n-gram of random length. One
    that would exceed the budget is shortened by words until it fits. There n-grams may go on over a [SEP].
    """

    usual_shares: ClassVar[tuple[float, ...]] = (6 / 11, 3 / 11, 2 / 11)
    """Shares of n-grams of 1, 2 and 3 words: n has a probability proportional to 1/n."""

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        positions, _ = self._ngrams(batch, budgets)
        return Chosen(positions, positions)

    def _ngrams(self, batch: MaskingBatch, budgets: Offsets) -> tuple[Offsets, Offsets]:
        """Return the positions of all n-grams (M,), ascending, and the first position of each one's word (M,)."""
        starts, stops = self._units(batch)
        chosen = ranges(*self._runs(batch, budgets, starts, stops, batch.shuffled(starts)))
        return ranges(starts[chosen], stops[chosen]), np.repeat(starts[chosen], (stops - starts)[chosen])

    def _units(self, batch: MaskingBatch) -> tuple[Offsets, Offsets]:
        """Return the words: flat indices of first tokens and of tokens after the last (W,)."""
        return words(batch, ~batch.continues)


@dataclass(frozen=True)
class WholeWordMasking(NGramMasking):
    """All pieces of a word or none; each piece still has its own draw of [MASK], a random piece or its own.

    Words are taken in random order; one that would exceed the budget is skipped, as in google-research/bert,
    `create_masked_lm_predictions`.
    """

    usual_shares: ClassVar[tuple[float, ...]] = (1.0,)


@dataclass(frozen=True)
class SpanMasking(RunMasking):
    """SpanBERT's spans of whole words: the boundary objective predicts from the tokens beside.

    Joshi et al. 2019 (arXiv 1907.10529, 3.1): span lengths are geometric with p = 0.2, cut off at 10 words, 3.8 in the mean;
    a span starts at a uniformly drawn token's word; [MASK], random or kept is drawn once for a span.

    Their number is that of facebookresearch/SpanBERT, `masking.py`: `rate` of the text's tokens, special ones not
    counted, rounded up. In that code spans may touch, grow into one another, and end inside a word where the budget does.
    """

    usual_shares: ClassVar[tuple[float, ...]] = tuple(
        (GEOMETRIC * np.float64(1 - GEOMETRIC) ** np.arange(MAX_WORDS)).tolist()
    )
    apart: ClassVar[bool] = True

    def _budgets(self, batch: MaskingBatch) -> Offsets:
        text = np.bincount(batch.owner[~batch.special], minlength=len(batch.lengths))
        return self._bounded(np.ceil(text * self.rate).astype(np.int64))

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        starts, stops = words(batch, ~batch.continues)
        tries = batch.shuffled(np.flatnonzero(~batch.special))
        first_word, end_word = self._runs(batch, budgets, starts, stops, tries)
        first, last = starts[first_word], stops[end_word - 1]
        size = last - first
        spans = np.repeat(np.stack([first, last - 1], axis=1), size, axis=0)
        return Chosen(ranges(first, last), np.repeat(first, size), spans)


def words(batch: MaskingBatch, starts: Bools) -> tuple[Offsets, Offsets]:
    """Return first tokens of words and tokens after their last (W,); `starts` (N,) marks the tokens that start one."""
    text = ~batch.special
    before = np.concatenate([[True], batch.special[:-1]])
    first = np.flatnonzero(text & (starts | before))
    after = np.concatenate([batch.special[1:] | starts[1:], [True]])
    return first, np.flatnonzero(text & after) + 1
