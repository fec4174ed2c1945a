"""Embeddings of texts, and ranking by cosine. H width, N candidates."""

from dataclasses import dataclass

import numpy as np

from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Positions, Task, first_token


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's index in the request and its cosine with the query."""

    index: int
    score: float


def normalize(vectors: Floats) -> Floats:
    """Return vectors (..., H) of length 1; the zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = vectors / np.maximum(lengths, np.asarray(1e-12, vectors.dtype))
    return unit


def cosine(first: Floats, second: Floats) -> Floats:
    """Return the cosine of each row of (N, H) with the same row of (N, H), as (N,): what STS-B compares."""
    return _clipped(np.sum(normalize(first) * normalize(second), axis=-1))


def rank(query: Floats, candidates: Floats, top_k: int | None = None) -> list[Ranked]:
    """Rank candidates (N, H) by cosine with the query (H,), best first; equal ones keep their order.

    Returns at most `top_k` (None: all). Raises ValueError if `top_k` is below 1.
    """
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k ({top_k}) must be at least 1")
    scores = _clipped(normalize(candidates) @ normalize(query))
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(index, score) for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)]


def _clipped(cosines: Floats) -> Floats:
    """Bring rounding's 1.0000001 back to what a cosine can be; nan stays nan."""
    return np.asarray(np.clip(cosines, -1, 1))


class SimilarityTask(Task):
    """A vector for each text; two texts are as alike as their cosine."""

    name = "similarity"
    head = Head.EMBEDDING
    has_one_position = True
    needs_pairs = True

    def head_outputs(self, spec: TaskSpec) -> int:
        """Return 0: there is no head."""
        return 0

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: vectors as wide as the encoder."""
        return "embeddings", hidden_size

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the position of [CLS]."""
        return first_token(encoding)

    def learns_numbers(self, problem_type: str) -> bool:
        """Return True: a number says how alike two texts are."""
        return True

    def compared(self, spec: TaskSpec) -> Compared:
        """Return ORDER: of the likeness of every two texts."""
        return Compared.ORDER
