"""Logits of texts to labels with scores. N texts, K labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from bert.tasks.task import (
    Compared,
    Floats,
    Head,
    Positions,
    Task,
    first_token,
    sigmoid,
    softmax,
    top_of_two_or_more,
)

_ACTIVATIONS = {"regression": "identity", "multi_label": "sigmoid"}
"""Problem type → activation of a spec that names none; other problem types take softmax."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The best label of one text and its score, and the scores of the best labels in falling order.

    A score is a probability; of a regression it is the label's number, which may have gone through a sigmoid.
    """

    label: str
    score: float
    scores: tuple[tuple[str, float], ...]


def decode(logits: Floats, spec: TaskSpec, top_k: int | None = None) -> list[Classification]:
    """Turn logits (N, K) into N results, each with its `top_k` best scores (None: all).

    Labels of equal score keep the order of `spec.labels`. Raises ValueError if K or `top_k` does not fit.
    """
    _check(logits, spec)
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k ({top_k}) must be at least 1")
    scores = _scores(logits, spec)
    order = (-scores).argsort(axis=-1, kind="stable")[:, :top_k]
    return [
        _result(spec.labels, best_first, values)
        for best_first, values in zip(order.tolist(), scores.tolist(), strict=True)
    ]


def predict(logits: Floats, spec: TaskSpec, threshold: float = 0.5) -> NDArray[Any]:
    """Return what `bert.metrics` compares with the gold labels.

    single_label: class ids (N,); multi_label: (N, K) of True where the probability is at least `threshold`;
    regression: the first label's numbers (N,).
    """
    _check(logits, spec)
    if spec.problem_type == "regression":
        return _scores(logits, spec)[:, 0]
    if spec.problem_type == "multi_label":
        return np.asarray(sigmoid(logits) >= threshold)
    return np.asarray(logits.argmax(axis=-1))


def _scores(logits: Floats, spec: TaskSpec) -> Floats:
    activation = spec.activation or _ACTIVATIONS.get(spec.problem_type, "softmax")
    if activation == "identity":
        return logits
    return sigmoid(logits) if activation == "sigmoid" else softmax(logits)


def _result(labels: Sequence[str], best_first: Sequence[int], values: Sequence[float]) -> Classification:
    scores = tuple([(labels[column], values[column]) for column in best_first])
    label, score = scores[0]
    return Classification(label, score, scores)


def _check(logits: Floats, spec: TaskSpec) -> None:
    k = len(spec.labels)
    if logits.ndim != 2 or logits.shape[1] != k:
        raise ValueError(
            f"logits have shape {logits.shape}; {spec.problem_type} with these labels needs (N, {k})"
        )


class ClassificationTask(Task):
    """Labels, or a number, for a text or a pair."""

    name = "classification"
    head = Head.POOLED
    architectures = ("BertForSequenceClassification",)
    needs_labels = True
    has_one_position = True
    has_problems = True
    may_read_pairs = True

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the position of [CLS]."""
        return first_token(encoding)

    def learns_numbers(self, problem_type: str) -> bool:
        """Tell whether it is a regression."""
        return problem_type == "regression"

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the probabilities of the labels; of a regression the numbers."""
        return [_scores(logits, spec) for logits in outputs]

    def top_labels(self, outputs: Sequence[Floats]) -> NDArray[np.intp] | None:
        """Return the top label of every text; None for a regression."""
        return top_of_two_or_more(outputs)

    def compared(self, spec: TaskSpec) -> Compared:
        """Return ORDER for a regression, else LABELS."""
        return Compared.ORDER if spec.problem_type == "regression" else Compared.LABELS
