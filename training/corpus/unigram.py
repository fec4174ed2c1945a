"""Unigram pieces of counted words by EM and pruning (Kudo 2018, arXiv 1804.10959), as SentencePiece's trainer does it.

The trainer of `tokenizers` sums in the order of its hash tables, which changes from run to run, and its pieces with it.
Here every order is that of sorted words. W words lie one after the other with a place between, N places in all; V
pieces of at most `MAX_PIECE` characters. A table (MAX_PIECE + 1, N) has the piece of each length that begins at each
place, V where there is none.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPACE = "▁"
MAX_PIECE = 16
MAX_WORD = 24
"""Characters of the longest word: longer ones are cut. The probability of all its pieces must not vanish in 64 bits."""
MAX_PLACES = 3_000_000
"""Largest number of characters of different words, 350 MB of memory; the rarest words are left out."""
SEEDS = 10
"""Pieces to begin with, as a multiple of those wanted."""
KEPT = 0.75
"""Share of the pieces that a pruning keeps."""
LEAST_COUNT = 0.5
"""Expected occurrences below which a piece is dropped."""

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


def unigram_pieces(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Return `size` pieces with their log probabilities, the likeliest first; fewer where the words have no more.

    Every character of the words is a piece. No other piece joins letters with digits or punctuation.
    """
    text = _Text.of(words)
    lattice = _seeds(text, max(SEEDS * size, 10_000))
    enough = int(size * 1.1)
    while True:
        for _ in range(2):
            lattice = lattice.refined(text, size)
        if len(lattice.logs) <= enough:
            break
        lattice = lattice.pruned(text, max(enough, int(len(lattice.logs) * KEPT)))
    order = np.lexsort((np.arange(len(lattice.logs)), -lattice.logs, lattice.lengths > 1))
    chosen = order[: max(size, int((lattice.lengths == 1).sum()))]
    ranked = chosen[np.lexsort((chosen, -lattice.logs[chosen]))]
    return [(text.piece(lattice.firsts[i], lattice.lengths[i]), float(lattice.logs[i])) for i in ranked]


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    characters: str
    """Different characters, sorted."""
    ids: Ints
    """(N,) index of the character at each place, -1 between words"""
    weights: Floats
    """(N,) how often a place's word occurs"""
    offsets: Ints
    """(N,) a place's distance from the start of its word"""
    left: Ints
    """(N,) characters of its word from a place on"""
    joined: NDArray[np.bool_]
    """(N,) True where a piece may hold a place's character and the next one"""

    @classmethod
    def of(cls, words: Mapping[str, int]) -> "_Text":
        counts = dict[str, int]()
        for word, count in words.items():
            for start in range(0, len(word), MAX_WORD):
                part = word[start : start + MAX_WORD]
                counts[part] = counts.get(part, 0) + count
        frequent = sorted(counts, key=lambda word: (-counts[word], word))
        sizes = np.array([len(word) + 1 for word in frequent])
        kept = sorted(frequent[: int(np.searchsorted(np.cumsum(sizes), MAX_PLACES, side="right"))])
        flat = "\0".join(kept) + "\0" * (MAX_PIECE + 1)
        codes = np.frombuffer(flat.encode("utf-32-le", "surrogatepass"), np.uint32)
        different = np.unique(codes)[1:]  # all but the place between
        ids = np.searchsorted(different, codes).astype(np.int32)
        ids[codes == 0] = -1
        lengths = np.array([len(word) + 1 for word in kept])
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        rest = len(ids) - len(starts)
        offsets = np.pad(np.arange(len(starts)) - starts, (0, rest)).astype(np.int32)
        left = np.pad(np.repeat(lengths - 1, lengths), (0, rest)) - offsets
        weights = np.pad(np.repeat([float(counts[word]) for word in kept], lengths), (0, rest))
        characters = "".join(map(chr, different))
        kinds = np.array([_kind(character) for character in characters] + [-1])[ids]
        same = (kinds[:-1] == kinds[1:]) | (kinds[:-1] == _BLANK)
        joined = np.append(same & (ids[:-1] >= 0) & (ids[1:] >= 0) & (kinds[1:] != _BLANK), False)
        return cls(characters, ids, weights, offsets, left.astype(np.int32), joined)

    def piece(self, first: int, length: int) -> str:
        return "".join(self.characters[i] for i in self.ids[first : first + length])


_BLANK = 3


def _kind(character: str) -> int:
    """Return 0 for letters and their marks, 1 for numbers, 2 for other characters, _BLANK for the sign of a space."""
    if character == SPACE:
        return _BLANK
    return {"L": 0, "M": 0, "N": 1}.get(unicodedata.category(character)[0], 2)


@dataclass(frozen=True, slots=True, eq=False)
class _Lattice:
    """Pieces, and where they are in the text."""

    table: Ints
    """(MAX_PIECE + 1, N)"""
    logs: Floats
    """(V,) log probability of each piece"""
    lengths: Ints
    """(V,)"""
    firsts: NDArray[np.int64]
    """(V,) a place where the piece begins"""
    counts: Floats
    """(V,) expected occurrences"""

    def refined(self, text: _Text, least: int) -> "_Lattice":
        """Take one step of EM: expected occurrences, then probabilities.

        Pieces that hardly occur are dropped, while there are more than `least`.
        """
        counts = self._expected(text)
        ranks = np.where(self.lengths == 1, np.inf, counts)
        most = max(least, int((ranks >= LEAST_COUNT).sum()))
        kept = np.sort(np.argsort(-ranks, kind="stable")[:most])
        counts = np.maximum(counts[kept], LEAST_COUNT)
        logs = _digamma(counts) - _digamma(counts.sum(keepdims=True))
        return self._only(kept, logs, counts)

    def pruned(self, text: _Text, size: int) -> "_Lattice":
        """Keep the `size` pieces without which the text would be least likely, and all single characters."""
        loss = np.where(self.lengths == 1, np.inf, self._losses())
        kept = np.sort(np.argsort(-loss, kind="stable")[:size])
        return self._only(kept, self.logs[kept], self.counts[kept])

    def _only(self, kept: NDArray[np.int64], logs: Floats, counts: Floats) -> "_Lattice":
        number = np.full(len(self.logs) + 1, len(kept), np.int32)
        number[kept] = np.arange(len(kept))
        return _Lattice(number[self.table], logs, self.lengths[kept], self.firsts[kept], counts)

    def _expected(self, text: _Text) -> Floats:
        """Return the expected occurrences of each piece (V,), by the forward-backward algorithm over all words at once."""
        chances = np.append(np.exp(self.logs), 0.0)
        steps = [np.flatnonzero((text.offsets == k) & (text.weights > 0)) for k in range(MAX_WORD + 1)]
        before, after = np.zeros(len(text.ids)), np.zeros(len(text.ids))
        before[steps[0]] = 1.0
        for k, places in enumerate(steps):
            for n in range(1, min(k, MAX_PIECE) + 1):
                before[places] += before[places - n] * chances[self.table[n, places - n]]
        after[(text.left == 0) & (text.weights > 0)] = 1.0
        for k, places in reversed(list(enumerate(steps))):
            for n in range(1, min(MAX_WORD - k, MAX_PIECE) + 1):
                after[places] += chances[self.table[n, places]] * after[places + n]
        starts = steps[0]
        whole = np.repeat(after[starts], np.diff(starts, append=len(after)))
        share = np.divide(text.weights * before, whole, out=np.zeros_like(before), where=whole > 0)
        found = np.zeros(len(chances))
        for n in range(1, MAX_PIECE + 1):
            pieces = self.table[n, :-n]
            found += np.bincount(pieces, share[:-n] * chances[pieces] * after[n:], len(chances))
        return found[:-1]

    def _losses(self) -> Floats:
        """Return how much log likelihood each piece's removal costs (V,): its best other pieces take its place."""
        total = self.counts.sum()
        losses = np.zeros(len(self.logs))
        logs, counts = np.append(self.logs, -np.inf), np.append(self.counts, 1.0)
        for length in range(2, MAX_PIECE + 1):
            chosen = np.flatnonzero(self.lengths == length)
            first, own = self.firsts[chosen], self.counts[chosen]
            best = [np.zeros(len(chosen))]
            others, parts = [np.zeros(len(chosen))], [np.zeros(len(chosen))]
            for end in range(1, length + 1):
                top, sums, number = (np.full(len(chosen), value) for value in (-np.inf, 0.0, 0.0))
                for n in range(1, min(end, length - 1) + 1):
                    piece = self.table[n, first + end - n]
                    value = best[end - n] + logs[piece]
                    better = value > top
                    top = np.where(better, value, top)
                    sums = np.where(better, others[end - n] + np.log(counts[piece] + own), sums)
                    number = np.where(better, parts[end - n] + 1, number)
                best.append(top)
                others.append(sums)
                parts.append(number)
            apart = others[-1] - parts[-1] * np.log(total + own * (parts[-1] - 1))
            losses[chosen] = own * (np.log(own) - np.log(total) - apart)
        return losses


def _seeds(text: _Text, size: int) -> _Lattice:
    """Return all characters, and of the substrings that occur twice those with the most characters in the text."""
    places = len(text.ids)
    table = np.full((MAX_PIECE + 1, places), -1, np.int32)
    table[1] = text.ids
    counts = [np.bincount(text.ids[text.ids >= 0], text.weights[text.ids >= 0])]
    firsts = [np.unique(text.ids, return_index=True)[1][1:]]
    alive, base = np.flatnonzero(text.ids >= 0), 0
    for n in range(2, MAX_PIECE + 1):
        alive = alive[text.joined[alive + n - 2] & (table[n - 1, alive] >= 0)]
        keys = table[n - 1, alive].astype(np.int64) * len(text.characters) + text.ids[alive + n - 1]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        found = np.bincount(inverse, text.weights[alive], len(first))
        base += len(counts[-1])
        twice = found >= 2
        number = np.where(twice, base + np.cumsum(twice) - 1, -1)
        table[n, alive] = number[inverse]
        counts.append(found[twice])
        firsts.append(alive[first[twice]])
    lengths = np.repeat(np.arange(1, MAX_PIECE + 1), [len(each) for each in counts]).astype(np.int32)
    every: Any = np.concatenate(counts)
    table[table < 0] = len(every)
    rank = np.where(lengths == 1, np.inf, every * lengths)
    kept = np.sort(np.argsort(-rank, kind="stable")[: max(size, len(text.characters))])
    logs = np.log(every * lengths / (every * lengths).sum())
    whole = _Lattice(table, logs, lengths, np.concatenate(firsts), every)
    return whole._only(kept, logs[kept], every[kept])


def _digamma(x: Floats) -> Floats:
    """Return the derivative of log Γ, by its series from 6 on and ψ(x) = ψ(x + 1) - 1/x below."""
    small = np.zeros_like(x)
    for _ in range(6):
        small += 1 / x
        x = x + 1
    squared = 1 / (x * x)
    series = squared * (1 / 12 - squared * (1 / 120 - squared * (1 / 252 - squared / 240)))
    digamma: Floats = np.log(x) - 0.5 / x - series - small
    return digamma
