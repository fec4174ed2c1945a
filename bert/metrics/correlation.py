"""Scores of numbers: how well two rankings or two measurements agree."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the linear correlation of (N,) with (N,); nan where one side is constant or N < 2."""
    first, second = _pair(gold, predicted)
    if len(first) < 2:
        return float("nan")
    first, second = first - first.mean(), second - second.mean()
    # Each side is scaled before the product, so that very small and very large numbers keep their digits.
    norm_first, norm_second = _norm(first), _norm(second)
    if norm_first == 0.0 or norm_second == 0.0:
        return float("nan")
    return float(np.clip((first / norm_first) @ (second / norm_second), -1.0, 1.0))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the correlation of the ranks, equal values sharing their mean rank; nan as in `pearson`."""
    first, second = _pair(gold, predicted)
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    return pearson(ranks(first), ranks(second))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1, (N,); a group of equal values gets the mean of the ranks that it spans."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    mean_rank: NDArray[np.float64] = last - (sizes - 1) / 2
    return mean_rank[group]


def _norm(values: NDArray[np.float64]) -> float:
    largest = float(np.max(np.abs(values)))
    return largest * float(np.linalg.norm(values / largest)) if largest > 0.0 else 0.0


def _pair(gold: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"gold has shape {first.shape}, predictions {second.shape}; both must be (N,)")
    if first.size == 0:
        raise ValueError("no examples to score")
    return first, second
