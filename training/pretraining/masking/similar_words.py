"""Similar words in place of [MASK]: MacBERT (Cui et al. 2020, arXiv 2004.13922, 3).

They are found by vectors of words or of their pieces. The words of a table have the same number of pieces, so that one can
stand in another's place. V pieces of the vocabulary, W words of n pieces, D width of the vectors, K neighbours of each word,
M masked positions, R masked words.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus, Document
from training.pretraining.examples.base import Ints, SpecialIds
from training.pretraining.examples.text import Text
from training.pretraining.masking.base import PIECE, Chosen, MaskingBatch, Offsets
from training.pretraining.masking.words import NGramMasking

Vectors = NDArray[np.floating[Any]]

NEIGHBOURS = 8
"""Similar words kept for each word."""
MAX_WORDS = 30_000
"""Number of words that are compared: the most frequent ones."""
MAX_PIECES = 8
"""Pieces of the longest word that is compared."""
SAMPLED_SHARDS, SAMPLED_TOKENS = 16, 1_000_000
"""Number of shards that words are counted in, evenly spaced over the corpus, and of tokens from the start of each."""
_ROWS = 512
"""Vectors to compare with all others at once; a block of 512 x 30,000 similarities takes 60 MB."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class WordTable(NamedTuple):
    """Words of one number of pieces, and the words most like each."""

    hashes: NDArray[np.uint64]
    """(W,) `word_hashes` of the words, ascending"""
    pieces: Ints
    """(W, n)"""
    near: Ints
    """(W, K) places of near words in this table, nearest first, filled up with -1"""

    def draw(self, words: Ints, u: NDArray[np.float64]) -> Ints:
        """Return the pieces (R, n) of a near word of each word (R, n), chosen by u (R,) in [0, 1); -1 where none is."""
        place = np.minimum(np.searchsorted(self.hashes, word_hashes(words)), len(self.hashes) - 1)
        known = (self.pieces[place] == words).all(axis=1)
        near = np.where(known[:, None], self.near[place], -1)
        count = (near >= 0).sum(axis=1)
        chosen = near[np.arange(len(near)), (u * count).astype(np.int64)]
        drawn: Ints = np.where(chosen[:, None] >= 0, self.pieces[chosen], -1)
        return drawn


SimilarWords = Mapping[int, WordTable]
"""Number of pieces → the words of that many."""


def word_hashes(words: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return a number for each of some words (W, n), different for all but improbable pairs."""
    hashes = np.zeros(len(words), np.uint64)
    for column in words.T:
        hashes = (hashes + column.astype(np.uint64) + np.uint64(1)) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes


@dataclass(frozen=True)
class SimilarWordMasking(NGramMasking):
    """N-grams of up to four words; one draw a word makes it a similar word, random pieces, or keeps it.

    A similar word has as many pieces as the word that it replaces, so the text keeps its length. A word without a similar
    one becomes random pieces. `mask_share` is the share of similar words: there is no [MASK] in the text.
    """

    usual_shares: ClassVar[tuple[float, ...]] = (0.4, 0.3, 0.2, 0.1)
    similar: SimilarWords = field(default_factory=dict)

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        return Chosen(*self._ngrams(batch, budgets))

    def _instead(self, batch: MaskingBatch, chosen: Chosen) -> Ints:
        ids = self._random(batch, chosen.positions)
        first = np.flatnonzero(chosen.positions == chosen.leaders)
        size = np.diff(first, append=len(ids))
        for pieces in np.unique(size).tolist():
            if pieces in self.similar:
                at = first[size == pieces]
                of_words = at[:, None] + np.arange(pieces)
                words = batch.ids[chosen.positions[of_words]]
                found = self.similar[pieces].draw(words, batch.uniform(chosen.positions[at], PIECE))
                ids[of_words] = np.where(found >= 0, found, ids[of_words])
        return ids


def of_pieces(corpus: Corpus, vectors: Vectors | Path, special: SpecialIds) -> SimilarWords:
    """Return the neighbours of a corpus's frequent words, each with the mean of its pieces' vectors.

    `vectors` (V, D) may have more rows than the vocabulary (a table filled up), or be a .npy file of them. Raises
    DataError for a file that is no such table.
    """
    table = _read(vectors) if isinstance(vectors, Path) else vectors
    if table.ndim != 2 or len(table) < corpus.vocab_size or not np.isfinite(table).all():
        raise DataError(
            vectors if isinstance(vectors, Path) else "vectors",
            None,
            f"must hold {corpus.vocab_size} rows of finite numbers, one a piece; it is {table.shape}",
        )
    words = frequent_words(corpus, special)
    return {n: neighbours(pieces, table[pieces].mean(axis=1)) for n, pieces in words.items()}


def of_words(file: Path, tokenizer: Tokenizer, special: SpecialIds) -> SimilarWords:
    """Return the neighbours of the first words of a file in word2vec's text format: a word and its numbers a line.

    A first line with two numbers is a header. Words with a piece outside `special.plain` are left out. Raises DataError for
    another file, with its line.
    """
    pieces: defaultdict[int, dict[tuple[int, ...], Vectors]] = defaultdict(dict)
    left = MAX_WORDS
    for word, vector in _read_words(file):
        ids = tuple(tokenizer.ids([" " + word])[0])
        known = pieces[len(ids)]
        if 0 < len(ids) <= MAX_PIECES and ids not in known and np.isin(ids, special.plain).all():
            known[ids] = vector
            left -= 1
            if not left:
                break
    return {
        n: neighbours(np.array(list(found), np.int32), np.stack(list(found.values())))
        for n, found in pieces.items()
        if found
    }


def neighbours(pieces: Ints, vectors: Vectors, count: int = NEIGHBOURS) -> WordTable:
    """Return the table of words (W, n) with vectors (W, D), each with up to `count` nearest ones by cosine.

    A word without a vector (all zeros) has none and is none. Takes W² · D multiplications: 20 s for 30,000 words of 384 on
    one core.
    """
    hashes = word_hashes(pieces)
    order = np.argsort(hashes)
    pieces, vectors = pieces[order], vectors[order].astype(np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    known = np.flatnonzero(norms[:, 0] > 0)
    unit = vectors[known] / norms[known]
    near = np.full((len(pieces), count), -1, np.int32)
    count = min(count, len(known) - 1)
    for start in range(0, len(known) if count > 0 else 0, _ROWS):
        rows = known[start : start + _ROWS]
        likeness = unit[start : start + _ROWS] @ unit.T
        likeness[np.arange(len(rows)), np.arange(start, start + len(rows))] = -np.inf  # not itself
        best = np.argpartition(-likeness, count - 1, axis=1)[:, :count]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(likeness, best, 1), axis=1), 1)
        near[rows, :count] = known[best]
    return WordTable(hashes[order], pieces, near)


def frequent_words(corpus: Corpus, special: SpecialIds) -> dict[int, Ints]:
    """Return the most frequent words of a sample of the corpus, by number of pieces: (W, n) each.

    They are counted over words of all lengths together. Words with a piece outside `special.plain` are left out.
    """
    entries = corpus.entries("train")
    spaced = np.linspace(0, len(entries) - 1, min(len(entries), SAMPLED_SHARDS)).astype(int)
    counts: dict[int, NDArray[np.int64]] = {}
    found: dict[int, Ints] = {}
    for place in np.unique(spaced).tolist():
        text = Text.of(list(_sample(corpus, entries[place])))
        starts = np.flatnonzero(~text.continues)
        size = np.diff(starts, append=len(text.tokens))
        for n in range(1, MAX_PIECES + 1):
            words = text.tokens[starts[size == n][:, None] + np.arange(n)]
            words = words[np.isin(words, special.plain).all(axis=1)]
            known, number = found.get(n, words[:0]), counts.get(n, np.zeros(0, np.int64))
            number = np.concatenate([number, np.ones(len(words), np.int64)])
            found[n], counts[n] = _counted(np.concatenate([known, words]), number)
    every = np.concatenate(list(counts.values()))
    least = np.sort(every)[-MAX_WORDS:][0] if len(every) else 0
    return {n: words[counts[n] >= least] for n, words in found.items() if (counts[n] >= least).any()}


def _counted(words: Ints, counts: NDArray[np.int64]) -> tuple[Ints, NDArray[np.int64]]:
    """Return each word once, with the sum of its counts."""
    _, first, group = np.unique(word_hashes(words), return_index=True, return_inverse=True)
    return words[first], np.bincount(group, counts, len(first)).astype(np.int64)


def _sample(corpus: Corpus, entry: Any) -> Iterator[Document]:
    """Yield documents from the start of a shard, up to SAMPLED_TOKENS."""
    shard, left = corpus.shard(entry), SAMPLED_TOKENS
    for index in range(len(shard)):
        document = shard.document(index)
        yield document
        left -= len(document.tokens)
        if left <= 0:
            return


def _read(file: Path) -> Vectors:
    try:
        table = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(file, None, f"cannot be read as .npy: {error}") from None
    if not isinstance(table, np.ndarray) or table.dtype.kind != "f":
        raise DataError(file, None, "must be one array of floating-point numbers, written by numpy.save")
    return table


def _read_words(file: Path) -> Iterator[tuple[str, Vectors]]:
    """Yield the words and vectors of a file; raises DataError with the line."""
    width = 0
    try:
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1:
                    continue
                width = width or len(numbers)
                yield word, _vector(file, number, numbers, width)
    except OSError as error:
        raise DataError(file, None, f"cannot be read: {error.strerror}") from None


def _vector(file: Path, line: int, numbers: Sequence[str], width: int) -> Vectors:
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        vector = np.zeros(0, np.float32)
    if len(vector) != width or not width or not np.isfinite(vector).all():
        raise DataError(
            file, line, f"must be a word and {width or 'its'} finite numbers, separated by spaces"
        )
    return vector
