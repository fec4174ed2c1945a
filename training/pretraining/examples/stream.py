"""Endless batches of masked examples, from any place in the stream on.

An epoch reads every shard once, in a new order, several at a time. Their examples are shuffled together, because a shard
holds neighbours of the corpus, perhaps of one kind only. Generators seeded with (seed, purpose, epoch, shard) plan,
shuffle and mask the examples. So the place alone decides what follows, however the run got there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert.errors import ConfigError, DataError
from training.corpus.shards import Corpus, Entry
from training.pretraining.examples.base import Example, MaskedExample
from training.pretraining.examples.text import Builder, Examples, Offsets, OtherDocuments, Text
from training.pretraining.masking.base import Keys, Masking
from training.pretraining.masking.words import TokenMasking

_SHARDS, _PLAN, _SHUFFLE, _MASKS = range(4)
"""Purposes of a generator."""
ALL: Final = slice(None)
ORDER = 4
"""Version of the examples, their order and their masks.

A new one refuses to resume older runs, which would read some examples twice.
"""
MIXED_SHARDS = 8
"""Number of shards whose examples are shuffled together: about 200 MB of memory at 16 MB a shard."""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in the stream, at which the next batch starts."""

    epoch: int = 0
    shard: int = 0
    """Index of the mix of shards in the epoch."""
    example: int = 0
    """Index in the mix's shuffled examples."""


START: Final = Cursor()


class _Examples(NamedTuple):
    """The examples of a mix of shards in one epoch; with static masks each shard is there several times."""

    plans: list[Examples]
    order: Offsets
    """(E,) shuffled indices"""
    keys: Keys
    """(E,) key of the mask of each index"""

    def take(self, places: Offsets) -> tuple[list[Example], Keys]:
        """Make the examples at some places of the shuffled order."""
        indices = self.order[places]
        borders = np.cumsum([0, *map(len, self.plans)])
        which = np.searchsorted(borders, indices, side="right") - 1
        found = np.empty(len(indices), object)
        for copy in np.unique(which).tolist():
            mine = which == copy
            found[mine] = self.plans[copy].take(indices[mine] - borders[copy])
        return found.tolist(), self.keys[indices]


class ExampleStream:
    """The masked examples of a split, epoch after epoch. Not safe between threads; small to send to processes."""

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        build: Builder,
        mask: Masking,
        seed: int,
        static_dupes: int = 0,
        mixed_shards: int = MIXED_SHARDS,
    ) -> None:
        """Open a split.

        With `static_dupes` (the paper's dupe_factor) an epoch is that many copies, each built and masked once. With 0 each
        epoch is built and masked afresh. Raises DataError where the split has too few documents for `build`.
        """
        self._corpus, self._split = corpus, split
        self._build, self._mask, self._seed, self._dupes = build, mask, seed, static_dupes
        self._entries = _checked(corpus, split, max(1, build.min_documents))
        self._others = OtherDocuments(corpus, split)
        self._mixed = mixed_shards
        self._kept: tuple[tuple[int, int], _Examples] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # a worker process reads its own text

    def batches(
        self, batch_size: int, cursor: Cursor = START, *, take: slice = ALL, every: int = 1
    ) -> Iterator[tuple[list[MaskedExample], Cursor]]:
        """Yield batches from a place on, each with the place after it; a batch may span shards and epochs.

        `take` is the part of each batch to make: rank r of w processes takes slice(r, None, w). `every` n yields each n-th
        batch, for n workers that share the work: worker k starts at `after(cursor, k * batch_size)`. Raises ConfigError
        for a place outside the stream, DataError if the split gives no example.
        """
        while True:
            batch, cursor = self._batch(batch_size, cursor, take)
            yield batch, cursor
            cursor = self.after(cursor, (every - 1) * batch_size)

    def after(self, cursor: Cursor, examples: int) -> Cursor:
        """Return the place that many examples further on. Only the planning of the shards on the way costs time."""
        reached = cursor
        for _, _, place in self._walk(cursor, examples):
            reached = place
        return reached

    def held_out_examples(self, limit: int) -> list[MaskedExample]:
        """Return up to `limit` examples of the held-out split, the same at every call: 15% of tokens, seed 0."""
        mask = TokenMasking(self._mask.special)
        stream = ExampleStream(self._corpus, "held_out", self._build, mask, 0)
        found: list[MaskedExample] = []
        for mix in range(stream._mixes):
            if len(found) < limit:
                examples = stream._examples(0, mix)
                count = min(limit - len(found), len(examples.order))
                found += mask.many(*examples.take(np.arange(count)))
        return found

    def _batch(self, size: int, cursor: Cursor, take: slice) -> tuple[list[MaskedExample], Cursor]:
        wanted = np.arange(size)[take]
        batch: list[MaskedExample] = []
        done, reached = 0, cursor
        for examples, places, after in self._walk(cursor, size):
            mine = wanted[(wanted >= done) & (wanted < done + len(places))] - done
            batch += self._mask.many(*examples.take(places[mine]))
            done, reached = done + len(places), after
        return batch, reached

    def _walk(self, cursor: Cursor, examples: int) -> Iterator[tuple[_Examples, NDArray[np.int64], Cursor]]:
        """Yield the next examples mix by mix: the mix, the places in it, and the place after."""
        empty = 0
        while examples > 0:
            here = self._examples(cursor.epoch, cursor.shard)
            if cursor.example > len(here.order):
                raise ConfigError(f"{cursor} is past the mix's {len(here.order)} examples: another corpus?")
            places = np.arange(cursor.example, min(cursor.example + examples, len(here.order)))
            if len(places):
                examples -= len(places)
                empty = 0
                cursor = Cursor(cursor.epoch, cursor.shard, int(places[-1]) + 1)
                yield here, places, cursor
            else:
                empty += 1
                if empty > 2 * self._mixes:
                    raise DataError(self._corpus.folder, None, f"split {self._split!r} gives no example")
                cursor = self._next(cursor)

    def _next(self, cursor: Cursor) -> Cursor:
        last = cursor.shard + 1 >= self._mixes
        return Cursor(cursor.epoch + 1) if last else Cursor(cursor.epoch, cursor.shard + 1)

    @property
    def _mixes(self) -> int:
        """Number of mixes in an epoch."""
        return -(-len(self._entries) // self._mixed)

    def _examples(self, epoch: int, place: int) -> _Examples:
        """Plan a mix, and keep the last one."""
        if not 0 <= place < self._mixes:
            raise ConfigError(f"place {place} must be one of the split's {self._mixes} mixes of shards")
        if self._kept is None or self._kept[0] != (epoch, place):
            self._kept = None  # before the next one takes memory
            order = self._generator(_SHARDS, epoch).permutation(len(self._entries)).tolist()
            # Mixes of like size: none is left with a single last shard.
            self._kept = (epoch, place), self._mix(epoch, place, order[place :: self._mixes])
        return self._kept[1]

    def _mix(self, epoch: int, place: int, shards: Sequence[int]) -> _Examples:
        """Plan shards one after another, and shuffle all their examples."""
        planned = [each for shard in shards for each in self._plan(epoch, shard)]
        order = self._generator(_SHUFFLE, epoch, place).permutation(sum(len(plan) for plan, _ in planned))
        return _Examples([plan for plan, _ in planned], order, np.concatenate([keys for _, keys in planned]))

    def _plan(self, epoch: int, shard: int) -> list[tuple[Examples, Keys]]:
        """Plan a shard (with static masks each of its copies) and draw the keys of its masks."""
        opened = self._corpus.shard(self._entries[shard])
        text = Text.of(
            [opened.document(i) for i in range(len(opened))], self._others.first(shard), self._others
        )
        found = []
        for version in range(self._dupes) if self._dupes else [epoch]:
            plan = self._build.plan(text, self._generator(_PLAN, version, shard))
            keys = self._generator(_MASKS, version, shard).integers(2**64, size=len(plan), dtype=np.uint64)
            found.append((plan, keys))
        return found

    def _generator(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self._seed, *purpose]))


def _checked(corpus: Corpus, split: str, min_documents: int) -> list[Entry]:
    """Return the entries of a split's shards.

    Raises DataError where a file is missing or of another size, and for a split with too few documents.
    """
    entries = corpus.entries(split)
    for entry in entries:
        corpus.shard(entry)  # and closed again: a corpus may have thousands, and each holds descriptors
    found = sum(int(entry["documents"]) for entry in entries if entry["tokens"])
    if found < min_documents:
        needed = f"{min_documents} documents are needed" if min_documents > 1 else "a document is needed"
        raise DataError(corpus.folder, None, f"split {split!r} has {found}, and {needed}")
    return entries
