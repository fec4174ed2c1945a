"""Word embeddings from what stands near what: counted in a corpus before the first step.

Pointwise mutual information of a piece with the pieces near it, what is below 0 left out, in a few directions (singular
values and vectors): Levy, Goldberg, Dagan 2015, "Improving Distributional Similarity with Lessons Learned from Word
Embeddings" (TACL 3). A minute of counting gives a short run what its first thousand steps would learn.

V pieces, C contexts, D the width of the embeddings.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.core.distributed import Processes
from training.corpus.shards import Corpus

WINDOW = 5
"""Pieces on each side; one at distance d counts (WINDOW + 1 - d) / WINDOW."""
CONTEXTS = 8192
"""Most frequent pieces that are counted as neighbours; 4 bytes for each of them and each piece of the vocabulary."""
COUNTED_TOKENS = 100_000_000
"""Of a corpus, at most."""
CONTEXT_POWER = 0.75
"""Of a context's frequency: rare ones would win otherwise."""
SPARE_DIRECTIONS, POWER_ITERATIONS = 20, 6
"""Of the randomised decomposition (Halko, Martinsson, Tropp 2011)."""


def start_embeddings(
    model: nn.Module, corpus: Corpus, plain: NDArray[np.integer], processes: Processes
) -> None:
    """Fill a fresh model's word embeddings for the `plain` pieces that the corpus has, each as long as a fresh one.

    The leader of the processes counts; the others get what it found.
    """
    table = next(
        weight for name, weight in model.named_parameters() if name.endswith("word_embeddings.weight")
    )
    with torch.no_grad():
        fresh = table[: corpus.vocab_size]
        vectors = embeddings(corpus, plain, table.shape[1]) if processes.leads else torch.zeros_like(fresh)
        vectors = processes.from_leader(vectors)
        known = vectors.any(dim=1)
        fresh[known] = vectors[known] * fresh[known].norm(dim=1).mean()


def embeddings(corpus: Corpus, plain: NDArray[np.integer], width: int) -> Tensor:
    """Return a vector of length 1 (V, D) for each of the `plain` pieces that the training text has; zeros for the others."""
    seen, counts = near_counts(corpus)
    vectors = directions(torch.from_numpy(counts), width)
    known = torch.zeros(len(vectors), dtype=torch.bool)
    known[torch.from_numpy(plain[seen[plain] > 0].astype(np.int64))] = True
    if not known.any() or not counts.any():
        return torch.zeros(len(vectors), width)  # nothing stands near anything
    centred = vectors - vectors[known].mean(0)
    return torch.nn.functional.normalize(centred, dim=1) * known[:, None]


def near_counts(corpus: Corpus) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Count the training text: each piece (V,), and each piece near each context (V, C), never across documents."""
    pieces = corpus.vocab_size
    seen = np.zeros(pieces, np.int64)
    for tokens in _texts(corpus):
        seen += np.bincount(tokens, minlength=pieces)
    contexts = min(pieces, CONTEXTS)
    column = np.full(pieces, contexts, np.int64)  # what is no context falls into a column of its own
    column[np.argsort(-seen, kind="stable")[:contexts]] = np.arange(contexts)
    counts = np.zeros(pieces * (contexts + 1), np.float32)
    for tokens in _texts(corpus):
        rows, columns = tokens.astype(np.int64) * (contexts + 1), column[tokens]
        for distance in range(1, min(WINDOW, len(tokens) - 1) + 1):
            weight = np.float32((WINDOW + 1 - distance) / WINDOW)
            np.add.at(counts, rows[:-distance] + columns[distance:], weight)
            np.add.at(counts, rows[distance:] + columns[:-distance], weight)
    return seen, counts.reshape(pieces, contexts + 1)[:, :contexts]


def _texts(corpus: Corpus) -> Iterator[NDArray[np.int32]]:
    """Yield the tokens of the documents, until they are COUNTED_TOKENS."""
    read = 0
    for document in corpus.documents("train"):
        yield document.tokens
        read += len(document.tokens)
        if read >= COUNTED_TOKENS:
            return


def directions(counts: Tensor, width: int) -> Tensor:
    """Return the rows of counts (V, C) as points (V, D) of their strongest directions; the same each time."""
    context = counts.sum(0) ** CONTEXT_POWER
    expected = counts.sum(1).clamp(min=1e-9)[:, None] * (context / context.sum().clamp(min=1e-9))[None]
    information = (counts / expected.clamp(min=1e-9)).clamp(min=1.0).log()  # log 1 where nothing was seen
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        asked = min(width + SPARE_DIRECTIONS, *counts.shape)
        left, strength, _ = torch.svd_lowrank(information, q=asked, niter=POWER_ITERATIONS)
    points = left * strength.sqrt()
    return torch.nn.functional.pad(points[:, :width], (0, max(0, width - points.shape[1])))
