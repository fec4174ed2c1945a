"""Similar words in place of [MASK]: MacBERT (Cui et al. 2020, arXiv 2004.13922, 3)."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from training.pretraining.examples.base import Ints, SpecialIds
from training.pretraining.examples.text import ranges
from training.pretraining.masking.base import Chosen, Masking, MaskingBatch, Offsets
from training.pretraining.masking.counter_rng import PIECE
from training.pretraining.masking.spans import runs
from training.pretraining.masking.tokens import words

NGRAM_SHARES = (0.4, 0.3, 0.2, 0.1)
"""Shares of runs of 1, 2, 3 and 4 words."""
_ROWS = 512
"""Vectors to compare with all others at once; a block of 512 x 30,000 similarities takes 60 MB."""


@dataclass(frozen=True)
class SimilarWordMasking(Masking):
    """Whole words, one to four together; one draw a word makes it a similar word, a random one, or keeps it.

    Each piece is replaced by a near one of `similar`, so the text keeps its length; a piece without a near one gets a
    random piece. `mask_share` is the share of similar words: there is no [MASK] in the text.
    """

    similar: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    """(V, K) ids of near pieces, filled up with -1 at the end of a row; see `nearest_pieces`."""

    def _choose(self, batch: MaskingBatch, budgets: Offsets) -> Chosen:
        starts, _ = words(batch, ~batch.continues)
        positions = ranges(*runs(batch, budgets, batch.shuffled(starts), np.array(NGRAM_SHARES)))
        return Chosen(positions, starts[np.searchsorted(starts, positions, side="right") - 1])

    def _instead(self, batch: MaskingBatch, positions: Offsets) -> Ints:
        near = self.similar[batch.ids[positions]]
        count = (near >= 0).sum(axis=1)
        drawn = (batch.uniform(positions, PIECE) * count).astype(np.int64)
        chosen = near[np.arange(len(near)), drawn] if near.shape[1] else np.full(len(near), -1, np.int32)
        return np.where(chosen >= 0, chosen, self._random(batch, positions))


def nearest_pieces(
    vectors: NDArray[np.floating], special: SpecialIds, groups: NDArray[np.integer], neighbours: int = 8
) -> Ints:
    """Return the `neighbours` ids nearest to each piece by cosine, nearest first (V, K), -1 where there is none.

    `vectors` (V, D) are word vectors or a model's embedding table. A piece's neighbours are of its own group (V,) and
    among `special.plain`. Takes V² · D multiplications: 20 s for 30,000 pieces of 384 on one core.
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros(vectors.shape, np.float32), where=norms > 0)
    found = np.full((len(vectors), neighbours), -1, np.int32)
    known = special.plain[norms[special.plain, 0] > 0]
    for group in np.unique(groups[known]):
        members = known[groups[known] == group]
        count = min(neighbours, len(members) - 1)
        for start in range(0, len(members) if count else 0, _ROWS):
            rows = members[start : start + _ROWS]
            near = unit[rows] @ unit[members].T
            near[np.arange(len(rows)), np.arange(start, start + len(rows))] = -np.inf  # not itself
            best = np.argpartition(-near, count - 1, axis=1)[:, :count]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(near, best, 1), axis=1), 1)
            found[rows, :count] = members[best]
    return found


def similar_pieces(tokenizer: Path, vectors: NDArray[np.floating] | Path, neighbours: int = 8) -> Ints:
    """Return `nearest_pieces` for a tokenizer's folder: word starts near word starts, ## pieces near ## pieces.

    `vectors` (V, D) may have more rows than the vocabulary (a table filled up), or be a .npy file of them. Raises
    DataError for a file that is no such table.
    """
    table = _read(vectors) if isinstance(vectors, Path) else vectors
    backend = Tokenizer.load(tokenizer)
    if table.ndim != 2 or len(table) < backend.vocab_size or not np.isfinite(table).all():
        raise DataError(
            vectors if isinstance(vectors, Path) else "vectors",
            None,
            f"must hold {backend.vocab_size} rows of finite numbers, one a piece; it is {table.shape}",
        )
    groups = np.array([backend.id_to_token(i).startswith("##") for i in range(backend.vocab_size)], np.int8)
    return nearest_pieces(table[: backend.vocab_size], SpecialIds.load(tokenizer), groups, neighbours)


def _read(file: Path) -> NDArray[np.floating]:
    try:
        table = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(file, None, f"cannot be read as .npy: {error}") from None
    if not isinstance(table, np.ndarray) or table.dtype.kind != "f":
        raise DataError(file, None, "must be one array of floating-point numbers, written by numpy.save")
    return table
