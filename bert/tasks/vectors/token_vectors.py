"""A vector for each token (ColBERT): how queries and documents are read, and MaxSim. T tokens, D numbers of a vector.

[CLS] marker text [SEP], of a query perhaps filled up with tokens of one kind, whose vectors count like the others.
"""

from collections.abc import Sequence

import numpy as np

from bert.encoding import Encoding, Pieces
from bert.errors import TextTooLongError
from bert.tasks.spec import TaskSpec, TokenVectors
from bert.tasks.task import Compared, Floats, Head, Positions, Task
from bert.tokenizer import Tokenizer

DOCUMENT, QUERY = 0, 1
"""Sequence ids of all tokens of a document and of a query."""
SIDES = {"document": DOCUMENT, "query": QUERY}
_NO_OFFSETS = np.zeros((0, 2), np.int32)
_EVERY_THIRD = 3
"""Texts of export whose number of pieces this divides are read as queries."""


def side_of(spec: TaskSpec) -> TokenVectors:
    """Return how a model reads both sides."""
    assert spec.token_vectors is not None
    return spec.token_vectors


def encode(
    text: Pieces, side: int, tokenizer: Tokenizer, spec: TaskSpec, *, truncate: bool = False
) -> Encoding:
    """Return a query or a document as the model reads it. Raises TextTooLongError for a longer one unless `truncate`.

    A token with a vector is of word 0, one that is only read of none.
    """
    how = side_of(spec)
    is_query = side == QUERY
    longest, marker = (
        (how.query_length, how.query_marker) if is_query else (how.document_length, how.document_marker)
    )
    before = [tokenizer.cls_id] if marker is None else [tokenizer.cls_id, marker]
    room = longest - len(before) - 1
    if len(text) > room and not truncate:
        raise TextTooLongError(len(before) + len(text) + 1, longest)
    read = text.ids[:room]
    filled = max(0, how.expansion_length - len(before) - len(read) - 1) if is_query else 0
    ids = np.concatenate([before, read, [tokenizer.sep_id], [how.expansion_id or 0] * filled]).astype(
        np.int32
    )
    words = np.zeros(len(ids), np.int32)
    if not is_query:
        words[np.isin(ids, how.skipped_ids)] = -1
    encoding = Encoding(ids, np.zeros_like(ids), _NO_OFFSETS, words, np.full_like(ids, side))
    encoding.truncated = len(text) > room
    return encoding


def maxsim(query: Floats, documents: Sequence[Floats], *, mean: bool = False) -> Floats:
    """Return the score of each document (T, D) for a query (Q, D), (K,).

    It is the sum, or the `mean`, of the largest product of each of the query's vectors, and depends on no other document.
    """
    sums = [(query @ each.T).max(axis=1, initial=-np.inf).sum() for each in documents]
    scores: Floats = np.array(sums, np.float32)
    return scores / np.float32(len(query)) if mean else scores


class TokenVectorsTask(Task):
    """A vector for each token; a document is as relevant to a query as the sum of its best products is large."""

    name = "token_vectors"
    head = Head.TOKENS
    fixed_outputs = 0  # there is no head
    compares = Compared.ORDER  # of the texts' scores for each query
    has_top_labels = False
    reads_words = True

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: vectors, each as wide as the last dense layer."""
        return "embeddings", spec.vector_size(hidden_size)

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the positions of tokens with a vector; where all pieces are skipped, those of special tokens."""
        return np.flatnonzero(encoding.word_ids >= 0)

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode the beginning of a text as a document, or as a query."""
        side = DOCUMENT if len(text[0]) % _EVERY_THIRD else QUERY
        return [encode(text[0], side, tokenizer, spec, truncate=True)]

    def self_test_scores(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return the mean of each text's vectors, (1, D): all of them would be the largest part of a bundle's texts."""
        return [rows.mean(axis=0, keepdims=True) for rows in outputs]

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the vectors, those longer than 1 scaled to length 1: rounding grows with the numbers."""
        return [rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1) for rows in outputs]
