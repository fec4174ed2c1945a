"""BERT in plain numpy. T tokens, H width, A heads, P positions, V vocabulary, E width of the embeddings."""

from collections.abc import Iterator

import numpy as np

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, MLM_HEAD, POSITIONS, SEGMENTS, WIDENING
from model_export.numpy_bodies.body import (
    ACTIVATIONS,
    Floats,
    Ints,
    Lengths,
    NumpyBody,
    by_text,
    places,
    softmax,
)


class NumpyBert(NumpyBody):
    """BERT's layers; where those of other bodies differ, they take the place of a method."""

    def layers(self, ids: Ints, segment_ids: Ints, lengths: Lengths) -> Iterator[Floats]:
        """Yield each layer's output (T, H)."""
        embedded = x = self._embedded(ids, segment_ids, lengths)
        bias = self.key_bias(ids)
        for place, layer in enumerate(self.config.layer_order):
            name = f"bert.encoder.layer.{layer}"
            attended = self._attention(x, f"{name}.attention.self", lengths, bias)
            x = self.norm(
                x + self.linear(attended, f"{name}.attention.output.dense"),
                f"{name}.attention.output.LayerNorm",
            )
            wide = self._widened(x, f"{name}.intermediate")
            x = self.norm(x + self.linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
            if place == 0:
                x = self._after_first(embedded, x, lengths)
            yield x

    def pooled(self, hidden: Floats, x: Floats) -> Floats:
        """Return what a classifier of texts reads, (P, H)."""
        return ACTIVATIONS[self.config.pooler_act](self.linear(x, "bert.pooler.dense"))

    def pieces(self, x: Floats) -> Floats:
        """Return the scores of all pieces, (P, V)."""
        dense = self.linear(x, f"{MLM_HEAD}.transform.dense")
        activated = ACTIVATIONS[self.config.mlm_act](dense)
        transformed = self.norm(activated, f"{MLM_HEAD}.transform.LayerNorm")
        return transformed @ self.weights[EMBEDDING].T + self.weights[f"{MLM_HEAD}.bias"]

    def _embedded(self, ids: Ints, segment_ids: Ints, lengths: Lengths) -> Floats:
        """Return what the first layer reads, (T, H)."""
        x: Floats = self.weights[EMBEDDING][ids] + self.weights[SEGMENTS][segment_ids]
        if self.config.body.has_positions:
            x += self.weights[POSITIONS][places(lengths)]
        if self.config.widens_embeddings:
            x = x @ self.weights[WIDENING].T
        x = self.norm(x, EMBEDDINGS_NORM)
        return self.linear(x, "bert.embeddings_project") if self.config.projects_embeddings else x

    def _attention(self, x: Floats, name: str, lengths: Lengths, bias: Floats) -> Floats:
        heads = (len(x), self.config.num_attention_heads, self.config.head_size)
        parts = (self.linear(x, f"{name}.{part}").reshape(heads) for part in ("query", "key", "value"))

        def attended(bias: Floats, *text: Floats) -> Floats:
            query, key, value = (part.swapaxes(0, 1) for part in text)  # (A, T, H / A)
            scores = self._scores(query, key, name)
            scores += bias
            return (softmax(scores) @ value).swapaxes(0, 1)

        return by_text(attended, lengths, bias, *parts).reshape(x.shape)

    def _scores(self, query: Floats, key: Floats, name: str) -> Floats:
        """Return the scores (A, T, T) of queries and keys (A, T, D)."""
        scores = query @ key.swapaxes(1, 2)
        return scores * np.float32(float(self.config.head_size**-0.5))

    def _widened(self, x: Floats, name: str) -> Floats:
        """Return the feed-forward layer's first half, (T, I)."""
        return ACTIVATIONS[self.config.hidden_act](self.linear(x, f"{name}.dense"))

    def _after_first(self, embedded: Floats, x: Floats, lengths: Lengths) -> Floats:
        """Return what the second layer reads, of the embeddings and the first layer's output (T, H)."""
        return x
