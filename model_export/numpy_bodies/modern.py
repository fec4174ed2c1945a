"""ModernBERT in plain numpy. T tokens, H width, A heads, D size of a head, P positions, V vocabulary."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, MLM_HEAD
from bert.bodies.modern import ModernBody
from model_export.numpy_bodies.body import ACTIVATIONS, Floats, Ints, Lengths, NumpyBody, by_text, softmax


class NumpyModern(NumpyBody):
    """ModernBERT's layers."""

    def layers(self, ids: Ints, segment_ids: Ints, lengths: Lengths) -> Iterator[Floats]:
        """Yield each layer's output (T, H), the last one after the encoder's norm."""
        body, act = ModernBody.of(self.config.body), ACTIVATIONS[self.config.hidden_act]
        x = self.norm(self.weights[EMBEDDING][ids], EMBEDDINGS_NORM)
        for layer in range(self.config.num_hidden_layers):
            name = f"bert.encoder.layer.{layer}"
            read = self.norm(x, f"{name}.attention.LayerNorm") if layer else x
            attention = partial(
                _attention,
                heads=self.config.num_attention_heads,
                theta=body.theta(layer),
                window=body.window if body.sliding[layer] else len(x),
            )
            joined = self.linear(read, f"{name}.attention.self.query_key_value")
            attended = by_text(attention, lengths, joined, self.key_bias(ids))
            x = x + self.linear(attended, f"{name}.attention.output.dense")
            read = self.norm(x, f"{name}.intermediate.LayerNorm")
            inner, gate = np.split(self.linear(read, f"{name}.intermediate.dense"), 2, axis=-1)
            x = x + self.linear(act(inner) * gate, f"{name}.output.dense")
            is_last = layer == self.config.num_hidden_layers - 1
            yield self.norm(x, "bert.encoder.LayerNorm") if is_last else x

    def pooled(self, hidden: Floats, x: Floats) -> Floats:
        """Return what a classifier of texts reads, (P, H)."""
        is_mean = self.config.body.text_pooling == "mean"
        return self.scored(hidden.mean(axis=0)[None] if is_mean else x)

    def scored(self, x: Floats) -> Floats:
        """Return what all heads read, (P, H), of hidden states (P, H)."""
        return self.norm(ACTIVATIONS[self.config.mlm_act](self.linear(x, "head.dense")), "head.norm")

    def pieces(self, x: Floats) -> Floats:
        """Return the scores of all pieces, (P, V)."""
        bias = self.weights.get(f"{MLM_HEAD}.bias", np.float32(0))
        return self.scored(x) @ self.weights[EMBEDDING].T + bias


def _attention(joined: Floats, bias: Floats, heads: int, theta: float, window: int) -> Floats:
    """Return the sums (T, H) of queries, keys and values (T, 3H), head by head: all at once would fill the memory."""
    tokens, size = len(joined), joined.shape[1] // 3 // heads
    parts = joined.reshape(tokens, 3, heads, size).transpose(1, 2, 0, 3)  # (3, A, T, D)
    places = np.arange(tokens)
    hidden = np.abs(places[:, None] - places) > window
    rows = []
    for query, key, value in zip(rotated(parts[0], theta), rotated(parts[1], theta), parts[2], strict=True):
        scores = query @ key.T / np.float32(math.sqrt(size))
        scores[hidden] = -np.inf
        scores += bias
        rows.append(softmax(scores) @ value)
    return np.concatenate(rows, axis=-1)


def rotated(x: Floats, theta: float, divisor: float = 1.0) -> Floats:
    """Rotate (A, T, D) by the tokens' places: each feature of the first half with one of the second."""
    half = x.shape[-1] // 2
    # In float32, as models learned them: at place 8,000 that is up to 0.0005 from the exact angle.
    frequencies = 1 / np.float32(theta ** (np.arange(half) / half)) / np.float32(divisor)
    angles = np.arange(x.shape[1], dtype=np.float32)[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
