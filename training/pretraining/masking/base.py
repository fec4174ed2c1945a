"""Base of the maskings: the number of positions, and their replacements.

B examples, N tokens of all of them side by side, M masked positions. A random number depends on its example's key and its
place alone, not on earlier draws. So a whole batch is masked at once, and an example gets the same mask in a batch of any
size, in any process.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.pretraining.examples.base import Bools, Example, Ints, MaskedExample, SpecialIds

Offsets = NDArray[np.int64]
Keys = NDArray[np.uint64]

ORDER: Final = 0
"""Purpose: the order of candidates."""
ACTION: Final = 1
"""Purpose: [MASK], random or kept."""
PIECE: Final = 2
"""Purpose: the random piece."""
LENGTH: Final = 3
"""Purpose: the number of words of a span."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, eq=False)
class MaskingBatch:
    """Examples side by side."""

    ids: Ints
    """(N,)"""
    continues: Bools
    """(N,)"""
    special: Bools
    """(N,)"""
    lengths: Offsets
    """(B,)"""
    starts: Offsets
    """(B,) first token of each example"""
    owner: Offsets
    """(N,) example of each token"""
    keys: Keys
    """(B,) key of each example's random numbers"""

    @classmethod
    def of(cls, examples: Sequence[Example], keys: Keys) -> "MaskingBatch":
        """Lay one example or more side by side."""
        lengths = np.array([len(example.ids) for example in examples], np.int64)
        return cls(
            np.concatenate([example.ids for example in examples]),
            np.concatenate([example.continues for example in examples]),
            np.concatenate([example.special for example in examples]),
            lengths,
            np.cumsum(lengths) - lengths,
            np.repeat(np.arange(len(examples)), lengths),
            keys,
        )

    def uniform(self, tokens: Offsets, purpose: int) -> NDArray[np.float64]:
        """Return a number in [0, 1) for each of some tokens, given by their flat indices."""
        owner = self.owner[tokens]
        return uniform(self.keys[owner], tokens - self.starts[owner], purpose)

    def shuffled(self, tokens: Offsets, weights: NDArray[np.float64] | None = None) -> Offsets:
        """Return tokens (flat indices, ascending) in a random order inside each example.

        With `weights`, one above 0 for each of the tokens, each next one is drawn in proportion to its weight among
        those that are left.
        """
        if weights is not None:
            # The first arrivals of independent exponential clocks are such draws (Efraimidis & Spirakis 2006).
            arrivals = -np.log1p(-self.uniform(tokens, ORDER)) / weights
            first_come: Offsets = tokens[np.lexsort((arrivals, self.owner[tokens]))]
            return first_come
        # A multiple of 2^-32 is added exactly to an example's number, so that no token leaves its example.
        order: Offsets = tokens[np.argsort(self.owner[tokens] + self.uniform(tokens, ORDER))]
        return order


class Chosen(NamedTuple):
    """The positions to predict."""

    positions: Offsets
    """(M,) flat indices, ascending"""
    leaders: Offsets
    """(M,) position whose draw decides between [MASK], random and kept: itself, or the first of its group"""
    spans: Offsets | None = None
    """(M, 2) flat indices of the first and last position of each span"""


@dataclass(frozen=True)
class Masking(ABC):
    """Chooses the positions of an example to predict, and their replacements.

    The number is that of google-research/bert, `create_masked_lm_predictions`: `rate` of all the example's tokens,
    special ones counted, rounded, at least 1 and at most `max_predictions`.
    """

    special: SpecialIds
    rate: float = 0.15
    max_predictions: int = 0
    """Most positions of one example; 0 sets no bound."""
    mask_share: float = 0.8
    """Share of the positions that get [MASK]."""
    random_share: float = 0.1
    """Share of the positions that get a random piece; the rest keep their own."""

    def many(self, examples: Sequence[Example], keys: Keys) -> list[MaskedExample]:
        """Mask examples, each by its own key (B,) and independent of the others."""
        if not examples:
            return []
        batch = MaskingBatch.of(examples, keys)
        chosen = self._choose(batch, self._budgets(batch))
        ids = batch.ids.copy()
        ids[chosen.positions] = self._replacements(batch, chosen)
        return _split(examples, batch, chosen, ids)

    def _budgets(self, batch: MaskingBatch) -> Offsets:
        """Return the number of positions to choose in each example (B,)."""
        return self._bounded(np.maximum(1, np.rint(batch.lengths * self.rate).astype(np.int64)))

    def _bounded(self, budgets: Offsets) -> Offsets:
        return np.minimum(budgets, self.max_predictions) if self.max_predictions else budgets

    @abstractmethod
    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        """Choose at most `budgets` (B,) positions of each example, none of them special."""

    def _replacements(self, batch: MaskingBatch, chosen: Chosen) -> Ints:
        """Return the ids at the chosen positions (M,) after masking."""
        action = batch.uniform(chosen.leaders, ACTION)
        masked = action < self.mask_share
        random = ~masked & (action < self.mask_share + self.random_share)
        kept = batch.ids[chosen.positions]
        ids: Ints = np.where(masked, self._instead(batch, chosen), kept)
        ids[random] = self._random(batch, chosen.positions[random])
        return ids

    def _instead(self, batch: MaskingBatch, chosen: Chosen) -> Ints | int:
        """Return the usual replacement of the chosen positions: [MASK]."""
        return self.special.mask

    def _random(self, batch: MaskingBatch, positions: Offsets) -> Ints:
        """Return a random piece for each position."""
        drawn = batch.uniform(positions, PIECE) * len(self.special.plain)
        pieces: Ints = self.special.plain[drawn.astype(np.int64)]
        return pieces


def _split(
    examples: Sequence[Example], batch: MaskingBatch, chosen: Chosen, ids: Ints
) -> list[MaskedExample]:
    """Cut the batch back into examples."""
    labels = batch.ids[chosen.positions]
    shift = batch.starts[batch.owner[chosen.positions]]
    positions = (chosen.positions - shift).astype(np.int32)
    spans = None if chosen.spans is None else (chosen.spans - shift[:, None]).astype(np.int32)
    starts = [*batch.starts.tolist(), len(ids)]
    borders = np.searchsorted(chosen.positions, starts).tolist()
    return [
        MaskedExample(
            ids=ids[start:stop],
            segment_ids=example.segment_ids,
            positions=positions[a:b],
            labels=labels[a:b],
            special=example.special,
            original=example.ids,
            pair_label=example.pair_label,
            spans=None if spans is None else spans[a:b],
        )
        for example, start, stop, a, b in zip(
            examples, starts, starts[1:], borders, borders[1:], strict=False
        )
    ]


def uniform(keys: Keys, places: NDArray[np.integer], purpose: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), multiples of 2^-32: one for each key (N,) and place (N,), another for each purpose.

    The mixing is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), whose state after
    n steps is key + n * GAMMA.
    """
    steps = places.astype(np.uint64) + np.uint64(1 + (purpose << 32))
    state = keys + steps * _GAMMA
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    state ^= state >> np.uint64(31)
    drawn: NDArray[np.float64] = (state >> np.uint64(32)).astype(np.float64) * 2.0**-32
    return drawn
