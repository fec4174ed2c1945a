"""Logits of texts to labels with scores. N texts, K labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bert.tasks.spec import TaskSpec
from bert.tasks.task import (
    Compared,
    Floats,
    Head,
    Task,
    sigmoid,
    softmax,
)

_ACTIVATIONS = {"regression": "identity", "multi_label": "sigmoid"}
"""Problem type → activation of a spec that names none; other problem types take softmax."""
Activation = Literal["softmax", "sigmoid", "identity"]
WindowMerge = Literal["max", "mean"]
"""Ways to make a text's scores of those of its windows."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Options of a request: the way from logits to scores, and the choice of scores in a result."""

    top_k: int | None = None
    """Number of scores, best first; None is all."""
    threshold: float | None = None
    """Lowest score of a label in `scores`; the best label is told whatever its score."""
    temperature: float | None = None
    """Divisor of the logits before softmax or sigmoid; None is 1."""
    activation: Activation | None = None
    """Activation that replaces the model's own; None keeps that."""

    def most_scores(self, spec: TaskSpec) -> int:
        """Return the largest number of scores that a result can have: of probabilities that add up to 1 few are high."""
        labels = len(spec.labels)
        count = labels if self.top_k is None else min(self.top_k, labels)
        if self.threshold and (self.activation or activation_of(spec)) == "softmax":
            return min(count, int(1 / self.threshold) + 1)  # one more, for rounding
        return count


ALL_SCORES = Scoring()


@dataclass(frozen=True, slots=True)
class Classification:
    """The best label of one text and its score, and the scores of the labels that were asked for, best first.

    A score is a probability; of a regression it is the label's number, which may have gone through a sigmoid.
    """

    label: str
    score: float
    scores: tuple[tuple[str, float], ...]


def decode(logits: Floats, spec: TaskSpec, scoring: Scoring = ALL_SCORES) -> list[Classification]:
    """Turn logits (N, K) into N results.

    Labels of equal score keep the order of `spec.labels`. Raises ValueError if K does not fit.
    """
    _check(logits, spec)
    return ranked(_scores(logits, spec, scoring), spec.labels, scoring)


def decode_windows(
    logits: Sequence[Floats],
    tokens: Sequence[Sequence[int]],
    spec: TaskSpec,
    merge: WindowMerge,
    scoring: Scoring = ALL_SCORES,
) -> list[Classification]:
    """Turn the logits (W, K) of each text's W windows into a result for each text.

    `tokens` are those of the text in each window, by which "mean" weighs its scores. Raises ValueError if K does not fit.
    """
    merged = list[Floats]()
    for rows, weights in zip(logits, tokens, strict=True):
        _check(rows, spec)
        merged.append(_merged(_scores(rows, spec, scoring), weights, merge))
    return ranked(np.stack(merged), spec.labels, scoring)


def activation_of(spec: TaskSpec) -> str:
    """Return what makes scores of a model's logits: softmax, sigmoid or identity."""
    return spec.activation or _ACTIVATIONS.get(spec.problem_type, "softmax")


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


def _scores(logits: Floats, spec: TaskSpec, scoring: Scoring = ALL_SCORES) -> Floats:
    activation = scoring.activation or activation_of(spec)
    if activation == "identity":
        return logits
    function: Callable[[Floats], Floats] = sigmoid if activation == "sigmoid" else softmax
    if scoring.temperature is None or scoring.temperature == 1:
        return function(logits)
    if activation == "softmax":  # which no shift changes, and infinite logits would make nan
        logits = logits - logits.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        scores = function(np.divide(logits, scoring.temperature, dtype=np.float64))
    return np.asarray(scores, logits.dtype)


def _merged(scores: Floats, tokens: Sequence[int], merge: WindowMerge) -> Floats:
    """Return a text's scores (K,) of those of its windows, (W, K)."""
    if merge == "max" or len(scores) == 1:
        return np.asarray(scores.max(axis=0))
    return np.asarray(np.average(scores, axis=0, weights=tokens), scores.dtype)


def ranked(scores: Floats, labels: Sequence[str], scoring: Scoring) -> list[Classification]:
    """Turn scores (N, K) into N results; labels of equal score keep their order."""
    order = (-scores).argsort(axis=-1, kind="stable")[:, : scoring.top_k]
    results = []
    for best_first, values in zip(order.tolist(), scores.tolist(), strict=True):
        pairs = tuple([(labels[column], values[column]) for column in best_first])
        results.append(Classification(*pairs[0], pairs))
    if scoring.threshold is None:
        return results
    least = scoring.threshold
    return [
        replace(each, scores=tuple([found for found in each.scores if found[1] >= least])) for each in results
    ]


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

    def learns_numbers(self, problem_type: str) -> bool:
        """Tell whether it is a regression."""
        return problem_type == "regression"

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the probabilities of the labels; of a regression the numbers."""
        return [_scores(logits, spec) for logits in outputs]

    def compared(self, spec: TaskSpec) -> Compared:
        """Return ORDER for a regression, else LABELS."""
        return Compared.ORDER if spec.problem_type == "regression" else Compared.LABELS
