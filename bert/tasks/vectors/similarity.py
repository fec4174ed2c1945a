"""Embeddings of texts, and ranking by their likeness. H width, N candidates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Positions, Task


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's index in the request and its likeness to the query: their cosine or dot product."""

    index: int
    score: float


def normalize(vectors: Floats) -> Floats:
    """Return vectors (..., H) of length 1; the zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = vectors / np.maximum(lengths, np.asarray(1e-12, vectors.dtype))
    return unit


def first_numbers(vectors: Floats, dimensions: int, spec: TaskSpec) -> Floats:
    """Return the first `dimensions` numbers of vectors (N, H), of length 1 if the model's vectors are (Matryoshka)."""
    if dimensions == vectors.shape[-1]:
        return vectors
    cut = vectors[:, :dimensions]
    return normalize(cut) if spec.normalize else np.ascontiguousarray(cut)


def cosine(first: Floats, second: Floats) -> Floats:
    """Return the cosine of each row of (N, H) with the same row of (N, H), as (N,): what STS-B compares."""
    return _clipped(np.sum(normalize(first) * normalize(second), axis=-1))


def likeness(first: Floats, second: Floats, similarity: str) -> Floats:
    """Return the cosine or the dot product of each row of (N, H) with the same row of (N, H), as (N,)."""
    return cosine(first, second) if similarity == "cosine" else np.asarray(np.sum(first * second, axis=-1))


def rank(
    query: Floats, candidates: Floats, top_k: int | None = None, similarity: str = "cosine"
) -> list[Ranked]:
    """Rank candidates (N, H) by cosine or dot product with the query (H,), best first; equal ones keep their order.

    Returns at most `top_k` (None: all).
    """
    dot = similarity == "dot"
    scores = candidates @ query if dot else _clipped(normalize(candidates) @ normalize(query))
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(index, score) for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)]


def _clipped(cosines: Floats) -> Floats:
    """Bring rounding's 1.0000001 back to what a cosine can be; nan stays nan."""
    return np.asarray(np.clip(cosines, -1, 1))


class SimilarityTask(Task):
    """A vector for each text; two texts are as alike as their cosine, or their dot product."""

    name = "similarity"
    head = Head.EMBEDDING
    has_one_position = True
    fixed_outputs = 0  # there is no head
    compares = Compared.ORDER  # of the likeness of every two texts
    has_top_labels = False
    needs_pairs = True

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: vectors, each as wide as the poolings together or as the last dense layer."""
        return "embeddings", spec.vector_size(hidden_size)

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the position of [CLS], or of the first token of each chunk: rows of the output are theirs."""
        starts = encoding.chunk_starts
        return super().head_positions(encoding) if starts is None else starts.astype(np.intp)

    def learns_numbers(self, problem_type: str) -> bool:
        """Return True: a number says how alike two texts are."""
        return True

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the vectors, those longer than 1 scaled to length 1: rounding grows with the numbers."""
        return [rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1) for rows in outputs]
