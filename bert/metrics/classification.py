"""Scores of labels. N examples, K classes; classes are numbers 0..K-1."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of examples whose prediction is the gold one. (N,) against (N,).

    With several labels an example, (N, K), an example counts when its whole row is right.
    """
    right = np.equal(*_same_shape(gold, predicted))
    return float(np.mean(right.reshape(len(right), -1).all(axis=1)))


def confusion_matrix(gold: ArrayLike, predicted: ArrayLike, classes: int | None = None) -> NDArray[np.int64]:
    """Return counts (K, K): row gold class, column predicted class.

    `classes` is K; None takes the highest class seen. Raises ValueError for a class outside 0..K-1.
    """
    gold_ids, predicted_ids = (a.astype(np.int64) for a in _same_shape(gold, predicted))
    lowest = min(int(gold_ids.min()), int(predicted_ids.min()))
    highest = max(int(gold_ids.max()), int(predicted_ids.max()))
    k = highest + 1 if classes is None else classes
    if lowest < 0 or highest >= k:
        raise ValueError(f"classes run from {lowest} to {highest}; they must lie in 0..{k - 1}")
    counts = np.bincount(gold_ids * k + predicted_ids, minlength=k * k)
    return counts.reshape(k, k).astype(np.int64)


def f1_binary(gold: ArrayLike, predicted: ArrayLike, positive: int = 1) -> float:
    """Return the F1 of one class, as GLUE has it for MRPC and QQP; 0 where the class never occurs."""
    is_gold, is_predicted = (a == positive for a in _same_shape(gold, predicted))
    return float(_f1(np.sum(is_gold & is_predicted), np.sum(is_gold), np.sum(is_predicted)))


def f1_macro(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean F1 of the classes that occur in gold or prediction."""
    counts = confusion_matrix(gold, predicted)
    in_gold, in_predicted = counts.sum(axis=1), counts.sum(axis=0)
    seen = (in_gold + in_predicted) > 0
    return float(np.mean(_f1(np.diag(counts), in_gold, in_predicted)[seen]))


def f1_multi_label(gold: ArrayLike, predicted: ArrayLike, average: str = "micro") -> float:
    """Return the F1 over examples with any number of labels: (N, K) of 0 and 1, or False and True.

    "micro" counts all labels together; "macro" is the mean over the K labels.
    """
    if average not in ("micro", "macro"):
        raise ValueError(f"average is {average!r}; known are micro and macro")
    is_gold, is_predicted = (a.astype(bool) for a in _same_shape(gold, predicted))
    axis = None if average == "micro" else 0
    both = np.sum(is_gold & is_predicted, axis=axis)
    return float(np.mean(_f1(both, np.sum(is_gold, axis=axis), np.sum(is_predicted, axis=axis))))


def matthews(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Matthews' correlation for K classes (Gorodkin 2004), CoLA's score; 0 if a side has one class."""
    counts = confusion_matrix(gold, predicted).astype(np.float64)
    in_gold, in_predicted, n = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    covariance = np.trace(counts) * n - in_gold @ in_predicted
    variances = (n * n - in_gold @ in_gold) * (n * n - in_predicted @ in_predicted)
    return float(covariance / np.sqrt(variances)) if variances > 0 else 0.0


def _f1(both: ArrayLike, in_gold: ArrayLike, in_predicted: ArrayLike) -> NDArray[np.float64]:
    """Return 2·both / (gold + predicted), 0 where neither side has any."""
    total = np.asarray(in_gold) + np.asarray(in_predicted)
    return np.asarray(2 * np.asarray(both) / np.maximum(total, 1), np.float64)


def _same_shape(gold: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    first, second = np.asarray(gold), np.asarray(predicted)
    if first.shape != second.shape:
        raise ValueError(f"gold has shape {first.shape}, predictions {second.shape}; they must agree")
    if first.size == 0:
        raise ValueError("no examples to score")
    return first, second
