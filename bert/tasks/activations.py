"""Logits to probabilities, in numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def softmax(logits: Floats) -> Floats:
    """Return probabilities (..., K) of logits (..., K)."""
    powers: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each logit alone, of any shape; large logits do not overflow."""
    powers = np.exp(-np.abs(logits))
    shares: Floats = np.where(logits >= 0, 1, powers) / (1 + powers)
    return shares
