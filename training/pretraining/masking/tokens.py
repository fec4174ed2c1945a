"""Single pieces, or all pieces of a word together (google-research/bert, `create_masked_lm_predictions`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.pretraining.examples.base import Bools
from training.pretraining.examples.text import ranges
from training.pretraining.masking.base import Chosen, Masking, MaskingBatch, Offsets


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
class WholeWordMasking(Masking):
    """All pieces of a word or none; each piece still has its own draw of [MASK], a random piece or its own.

    Words are taken in random order; one that would exceed the budget is skipped, as in the reference.
    """

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        starts, stops = self._units(batch)
        # Each unit draws by its first token. Shuffling gives first tokens; their units follow by search.
        order = np.searchsorted(starts, batch.shuffled(starts))
        lengths = (stops - starts)[order].tolist()
        borders = np.searchsorted(batch.owner[starts], np.arange(len(budgets) + 1)).tolist()
        picked: list[int] = []
        for start, stop, budget in zip(borders, borders[1:], budgets.tolist(), strict=False):
            picked.extend(fill(lengths, start, stop, budget))
        units = np.sort(order[np.array(picked, np.int64)])
        positions = ranges(starts[units], stops[units])
        return Chosen(positions, positions)

    def _units(self, batch: MaskingBatch) -> tuple[Offsets, Offsets]:
        """Return the units that are masked together: flat indices of first tokens and of tokens after the last (U,)."""
        return words(batch, ~batch.continues)


def words(batch: MaskingBatch, starts: Bools) -> tuple[Offsets, Offsets]:
    """Return first tokens of words and tokens after their last (W,); `starts` (N,) marks the tokens that start one."""
    text = ~batch.special
    before = np.concatenate([[True], batch.special[:-1]])
    first = np.flatnonzero(text & (starts | before))
    after = np.concatenate([batch.special[1:] | starts[1:], [True]])
    return first, np.flatnonzero(text & after) + 1


def fill(lengths: Sequence[int], start: int, stop: int, budget: int) -> Iterator[int]:
    """Yield the units of start … stop - 1, in this order, that fit into the budget; too long ones are skipped."""
    for unit in range(start, stop):
        if lengths[unit] <= budget:
            yield unit
            budget -= lengths[unit]
            if not budget:
                return
