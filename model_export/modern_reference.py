"""ModernBERT's layers in plain numpy, one text at a time, for `model_export.reference`. T tokens, H width, D head size."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bert.config import BertConfig
from bert.relatives.modern import ModernShape

Floats = NDArray[np.float32]
ByName = Callable[[Floats, str], Floats]


def modern_hidden(
    config: BertConfig,
    shape: ModernShape,
    words: Floats,
    linear: ByName,
    norm: ByName,
    activation: Callable[[Floats], Floats],
) -> Floats:
    """Return the last layer (T, H) of word embeddings (T, H); `linear` and `norm` apply layers by name."""
    x = norm(words, "bert.embeddings.LayerNorm")
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        read = norm(x, f"{name}.attention.LayerNorm") if layer else x
        attended = _attention(
            linear(read, f"{name}.attention.self.query_key_value"),
            config.num_attention_heads,
            shape.theta(layer),
            shape.window if shape.sliding[layer] else len(x),
        )
        x = x + linear(attended, f"{name}.attention.output.dense")
        wide = linear(norm(x, f"{name}.intermediate.LayerNorm"), f"{name}.intermediate.dense")
        inner, gate = np.split(wide, 2, axis=-1)
        x = x + linear(activation(inner) * gate, f"{name}.output.dense")
    return norm(x, "bert.encoder.LayerNorm")


def _attention(joined: Floats, heads: int, theta: float, window: int) -> Floats:
    """Return the sums (T, H) of queries, keys and values (T, 3H), head by head: all at once would fill the memory."""
    tokens, size = len(joined), joined.shape[1] // 3 // heads
    parts = joined.reshape(tokens, 3, heads, size).transpose(1, 2, 0, 3)  # (3, A, T, D)
    places = np.arange(tokens)
    hidden = np.abs(places[:, None] - places) > window
    rows = []
    for query, key, value in zip(_rotated(parts[0], theta), _rotated(parts[1], theta), parts[2], strict=True):
        scores = query @ key.T / np.float32(math.sqrt(size))
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        rows.append(weights @ value)
    return np.concatenate(rows, axis=-1)


def _rotated(x: Floats, theta: float) -> Floats:
    """Rotate (A, T, D) by the tokens' places: each feature of the first half with one of the second."""
    half = x.shape[-1] // 2
    # In float32, as models learned them: at place 8,000 that is up to 0.0005 from the exact angle.
    frequencies = 1 / np.float32(theta ** (np.arange(half) / half))
    angles = np.arange(x.shape[1], dtype=np.float32)[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
