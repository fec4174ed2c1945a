"""DeBERTa in plain numpy. T tokens, H width, A heads, D size of a head, N rows of the table of distances."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from bert.bodies.deberta import CONVOLUTION, DISTANCES, DISTANCES_NORM, DebertaBody, distance_rows
from bert.config import BertConfig
from model_export.numpy_bodies.bert import NumpyBert
from model_export.numpy_bodies.body import ACTIVATIONS, Floats, Lengths, Observe, by_text


class NumpyDeberta(NumpyBert):
    """DeBERTa's layers."""

    def __init__(self, config: BertConfig, weights: Mapping[str, Floats], observe: Observe) -> None:
        """`observe` sees the input of every linear layer."""
        super().__init__(config, weights, observe)
        self._distances = dict[tuple[str, str], Floats]()
        """Projected vectors of distances, (A, D, N), by layer and term."""

    def _scores(self, query: Floats, key: Floats, name: str) -> Floats:
        body = DebertaBody.of(self.config.body)
        scores = query @ key.swapaxes(1, 2)  # (A, T, T)
        if body.pos_att_type:
            scores += self._distance_scores(query, key, name)
        return scores * np.float32(body.score_scale(self.config))

    def _distance_scores(self, query: Floats, key: Floats, name: str) -> Floats:
        """Return the terms of queries and keys (A, T, D) with their distances, (A, T, T); DeBERTa's, equation 4."""
        body, (heads, tokens, size) = DebertaBody.of(self.config.body), query.shape
        vectors = self.weights[DISTANCES]
        if body.normalises_distances:
            vectors = self.norm(vectors, DISTANCES_NORM)
        total: Floats = np.zeros((heads, tokens, tokens), np.float32)
        reads = {"c2p": (query, "key", "pos_key_proj"), "p2c": (key, "query", "pos_query_proj")}
        places = np.arange(tokens)
        rows = distance_rows(places[:, None] - places, *body.distance_table(self.config))
        for term in body.pos_att_type:
            content, shared, own = reads[term]
            layer = f"{name}.{shared if body.share_att_key else own}"
            if (layer, term) not in self._distances:
                projected = vectors @ self.weights[f"{layer}.weight"].T + self.weights[f"{layer}.bias"]
                self._distances[layer, term] = projected.reshape(-1, heads, size).transpose(1, 2, 0)
            products = content @ self._distances[layer, term]  # (A, T, N)
            if term == "c2p":
                total += np.take_along_axis(products, rows[None], axis=2)
            else:
                total += np.take_along_axis(products, rows.T[None], axis=2).swapaxes(1, 2)
        return total

    def _after_first(self, embedded: Floats, x: Floats, lengths: Lengths) -> Floats:
        body = DebertaBody.of(self.config.body)
        if body.conv_kernel_size < 1:
            return x
        convolution = partial(convolve, weights=self.weights, groups=body.conv_groups)
        convolved = by_text(convolution, lengths, embedded)
        return self.norm(x + ACTIVATIONS[body.conv_act](convolved), f"{CONVOLUTION}.LayerNorm")


def convolve(x: Floats, weights: Mapping[str, Floats], groups: int) -> Floats:
    """Return DeBERTa's convolution of a text's embeddings (T, H), which end in zeros."""
    kernel, bias = (weights[f"{CONVOLUTION}.conv.{kind}"] for kind in ("weight", "bias"))
    width, inner, size = kernel.shape
    padded = np.pad(x, ((size // 2, size // 2), (0, 0))).reshape(-1, groups, inner)
    by_group = kernel.reshape(groups, width // groups, inner, size)
    parts = (np.einsum("tgi,goi->tgo", padded[at : at + len(x)], by_group[..., at]) for at in range(size))
    return sum(parts, np.float32(0)).reshape(x.shape).astype(np.float32) + bias
