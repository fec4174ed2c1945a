"""Batches of texts of like length: little padding, a fresh random order each epoch, the same for the same seed."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

POOL_BATCHES = 32
"""Batches that are sorted by length together: more means less padding and an order less random."""


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the epoch's batches as indices into `lengths`; each index once, a pure function of its arguments."""
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(lengths))
    by_length = np.asarray(lengths)
    batches: list[NDArray[np.int64]] = []
    pool = batch_size * POOL_BATCHES
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(by_length[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def draw(counts: Sequence[int], repeats: Sequence[float], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return which examples an epoch draws: files of `counts` examples lie one after another, each `repeats` times.

    The whole part of a repeat takes every example, its fraction a random share that differs from epoch to epoch.
    """
    rng = np.random.default_rng((seed, epoch, 1))
    drawn, first = [], 0
    for count, repeat in zip(counts, repeats, strict=True):
        whole, part = int(repeat), round((repeat - int(repeat)) * count)
        everything = np.arange(first, first + count)
        drawn += [everything] * whole + [np.sort(rng.permutation(everything)[:part])]
        first += count
    return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)


def by_length(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Cut everything into batches of like length for evaluation; a padded batch holds at most `max_batch_tokens`."""
    order = np.argsort(np.asarray(lengths), kind="stable")[::-1]
    start = 0
    while start < len(order):
        size = max(1, max_batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size
