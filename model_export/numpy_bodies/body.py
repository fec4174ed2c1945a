"""The numpy base of all bodies. T tokens of N texts one after the other, H width, P positions, V vocabulary."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bert.config import BertConfig

Floats = NDArray[np.float32]
Ints = NDArray[np.integer]
Observe = Callable[[str, Floats], None]
Lengths = Sequence[int]
"""Tokens of each of the texts that lie one after the other."""

BLOCK = 2**16
"""Numbers that `erf` works on at once, so that they stay in a core's cache."""


class NumpyBody(ABC):
    """A checkpoint's layers, and the part of its heads that depends on the body."""

    def __init__(self, config: BertConfig, weights: Mapping[str, Floats], observe: Observe) -> None:
        """`observe` sees the input of every linear layer."""
        self.config, self.weights, self._observe = config, weights, observe

    hidden_id: int | None = None
    """Id of tokens that no token attends to; None where there are none."""

    def key_bias(self, ids: Ints) -> Floats:
        """Return what is added to the scores of tokens (T,) that are attended to."""
        return np.where(ids == self.hidden_id, np.float32(-np.inf), np.float32(0))

    @abstractmethod
    def layers(self, ids: Ints, segment_ids: Ints, lengths: Lengths) -> Iterator[Floats]:
        """Yield each layer's output (T, H), the last one as the heads read it; ids and segment ids (T,), lengths (N,)."""

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


def by_text(function: Callable[..., Floats], lengths: Lengths, *arrays: Floats) -> Floats:
    """Call a function with each text's part of the arrays (T, ...), and join what it returns."""
    parts = zip(*(np.split(array, np.cumsum(lengths)[:-1]) for array in arrays), strict=True)
    return np.concatenate([function(*part) for part in parts])


def places(lengths: Lengths) -> Ints:
    """Return each token's place in its text, (T,)."""
    return np.concatenate([np.arange(length) for length in lengths])


def softmax(scores: Floats) -> Floats:
    """Return the weights of scores (..., T) in sums over T."""
    weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def erf(x: Floats) -> Floats:
    """Return the error function, wrong by at most 1.2e-7: numpy has none.

    Numerical Recipes, third edition, section 6.2.2 (Chebyshev fit of erfc), summed in float64.
    """
    result = np.empty(x.shape, np.float32)
    read, written = np.ascontiguousarray(x).reshape(-1), result.reshape(-1)
    for start in range(0, len(read), BLOCK):
        part = read[start : start + BLOCK].astype(np.float64)
        z = np.abs(part)
        t = 1 / (1 + z / 2)
        power = np.full_like(t, _ERFC[-1])
        for factor in _ERFC[-2::-1]:
            power *= t
            power += factor
        power -= z * z
        tail = np.exp(power, out=power)
        tail *= t
        written[start : start + BLOCK] = np.copysign(1 - tail, part)
    return result


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
