"""The numpy base of all bodies. T tokens, H width, P positions, V vocabulary."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig

Floats = NDArray[np.float32]
Ints = NDArray[np.integer]
Observe = Callable[[str, Floats], None]


class NumpyBody(ABC):
    """A checkpoint's layers, and the part of its heads that depends on the body."""

    def __init__(self, config: BertConfig, weights: Weights, observe: Observe) -> None:
        """`observe` sees the input of every linear layer."""
        self.config, self.weights, self._observe = config, weights, observe

    @abstractmethod
    def hidden(self, ids: Ints, segment_ids: Ints) -> Floats:
        """Return the last layer; ids and segment ids (T,) → (T, H)."""

    @abstractmethod
    def pooled(self, hidden: Floats, x: Floats) -> Floats:
        """Return what a classifier of texts reads, (P, H), of hidden (T, H) and of those at its positions (P, H)."""

    @abstractmethod
    def pieces(self, x: Floats) -> Floats:
        """Return the scores of all pieces, (P, V), for hidden states (P, H)."""

    def scored(self, x: Floats) -> Floats:
        """Return what a classifier of tokens reads, (P, H), of hidden states (P, H)."""
        return x

    def linear(self, x: Floats, name: str) -> Floats:
        """Return x W + b."""
        self._observe(name, x)
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", np.float32(0))

    def norm(self, x: Floats, name: str) -> Floats:
        """Return LayerNorm(x)."""
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        unit = centred / np.sqrt(variance + np.float32(self.config.layer_norm_eps))
        shift = self.weights.get(f"{name}.bias", np.float32(0))
        normed: Floats = unit * self.weights[f"{name}.weight"] + shift
        return normed


def softmax(scores: Floats) -> Floats:
    """Return the weights of scores (..., T) in sums over T."""
    weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def erf(x: Floats) -> Floats:
    """Return the error function, wrong by at most 1.2e-7: numpy has none.

    Numerical Recipes, third edition, section 6.2.2 (Chebyshev fit of erfc), summed in float64.
    """
    z = np.abs(x.astype(np.float64))
    t = 1 / (1 + z / 2)
    power = np.polynomial.polynomial.polyval(t, _ERFC)
    tail = t * np.exp(-z * z + power)
    return np.where(x >= 0, 1 - tail, tail - 1).astype(np.float32)


def _gelu(x: Floats) -> Floats:
    half: Floats = np.float32(0.5) * x * (1 + erf(x / np.float32(math.sqrt(2))))
    return half


def _gelu_new(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    half: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return half


def _sigmoid_gate(factor: float) -> Callable[[Floats], Floats]:
    return lambda x: x / (1 + np.exp(-np.float32(factor) * x))


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": _gelu, "gelu_new": _gelu_new, "relu": _relu, "tanh": np.tanh,
    "silu": _sigmoid_gate(1.0), "quick_gelu": _sigmoid_gate(1.702),
}  # fmt: skip
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip
