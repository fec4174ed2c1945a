"""BERT once more, in plain numpy and one text at a time: what the graph's answers are compared with.

It shares no code with the graph. T tokens, H width, A heads, P positions, K scores, V vocabulary, E an embedding's width.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bert.checkpoint.tensor_names import EMBEDDING, MLM_HEAD, Weights, head_name
from bert.config import BertConfig
from bert.relatives.distances import distance_rows
from bert.relatives.family import POSITIONS, SEGMENTS
from bert.relatives.modern import ModernShape
from bert.relatives.relative_positions import bucket_table
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from model_export.modern_reference import modern_hidden

Floats = NDArray[np.float32]
Ints = NDArray[np.integer]
Observe = Callable[[str, Floats], None]


class Reference:
    """The checkpoint itself, as the comparison's fixed end."""

    def __init__(
        self,
        config: BertConfig,
        spec: TaskSpec,
        weights: Weights,
        *,
        observe: Observe = lambda name, x: None,
    ) -> None:
        """`observe` sees the input of every linear layer."""
        self._config, self._spec, self._weights = config, spec, weights
        self._task, self._observe = TASKS[spec.task], observe
        self._distances = dict[tuple[str, str], Floats]()
        """Projected vectors of distances, (A, D, N), by layer and term."""

    def outputs(self, ids: Ints, segment_ids: Ints, positions: Ints) -> Floats:
        """Return the logits at the positions of one text, (P, K) or (P, V); for similarity its embedding, (1, E)."""
        hidden = self.hidden(ids, segment_ids)
        if self._task.head is Head.EMBEDDING:
            return self._embedding(hidden)[None]
        x: Floats = hidden[positions]
        if self._config.modern is not None:
            return self._modern_outputs(hidden, x, self._config.modern)
        if self._task.head is Head.VOCABULARY:
            return self._pieces(x)
        if self._task.head is Head.POOLED:
            x = _ACTIVATIONS[self._config.pooler_act](self._linear(x, "bert.pooler.dense"))
        return self._linear(x, self._task.head_name)

    def hidden(self, ids: Ints, segment_ids: Ints) -> Floats:
        """Return the encoder's last layer; ids and segment ids (T,) → (T, H)."""
        if self._config.modern is not None:
            words = self._weights[EMBEDDING][ids]
            act = _ACTIVATIONS[self._config.hidden_act]
            return modern_hidden(self._config, self._config.modern, words, self._linear, self._norm, act)
        embedded = x = self._embedded(ids, segment_ids)
        bias = self._relative_bias(len(x))
        for place, layer in enumerate(self._config.layer_order):
            name = f"bert.encoder.layer.{layer}"
            attended = self._attention(x, bias, f"{name}.attention.self")
            x = self._norm(
                x + self._linear(attended, f"{name}.attention.output.dense"),
                f"{name}.attention.output.LayerNorm",
            )
            wide = _ACTIVATIONS[self._config.hidden_act](self._linear(x, f"{name}.intermediate.dense"))
            x = self._norm(x + self._linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
            if place == 0 and self._config.conv_kernel_size > 0:
                convolved = convolve(embedded, self._weights, self._config.conv_groups)
                activated = _ACTIVATIONS[self._config.conv_act](convolved)
                x = self._norm(x + activated, "bert.encoder.conv.LayerNorm")
        return x

    def _embedded(self, ids: Ints, segment_ids: Ints) -> Floats:
        """Return what the first layer reads, (T, H)."""
        x: Floats = self._weights[EMBEDDING][ids] + self._weights[SEGMENTS][segment_ids]
        if self._config.position_biased_input:
            x += self._weights[POSITIONS][: len(ids)]
        if self._config.widens_embeddings:
            x = x @ self._weights["bert.embeddings.embed_proj.weight"].T
        x = self._norm(x, "bert.embeddings.LayerNorm")
        return self._linear(x, "bert.embeddings_project") if self._config.projects_embeddings else x

    def _embedding(self, hidden: Floats) -> Floats:
        """Return the embedding (E,) of a text's last vectors (T, H)."""
        x: Floats = np.concatenate([_POOLINGS[name](hidden) for name in self._spec.poolings])
        for number, layer in enumerate(self._spec.dense):
            weight, bias = (self._weights[f"dense.{number}.{kind}"] for kind in ("weight", "bias"))
            x = weight @ x + bias
            x = np.tanh(x) if layer.activation == "tanh" else x
        return x / np.float32(max(float(np.linalg.norm(x)), 1e-12)) if self._spec.normalize else x

    def _pieces(self, x: Floats) -> Floats:
        dense = self._linear(x, f"{MLM_HEAD}.transform.dense")
        activated = _ACTIVATIONS[self._config.mlm_act](dense)
        transformed = self._norm(activated, f"{MLM_HEAD}.transform.LayerNorm")
        return transformed @ self._weights[EMBEDDING].T + self._weights[f"{MLM_HEAD}.bias"]

    def _modern_outputs(self, hidden: Floats, x: Floats, shape: ModernShape) -> Floats:
        """Return a head's logits for the vectors x of hidden (T, H): all heads begin with the same two layers."""
        if self._task.head is Head.POOLED and shape.classifier_pooling == "mean":
            x = hidden.mean(axis=0)[None]
        x = self._norm(_ACTIVATIONS[shape.classifier_activation](self._linear(x, "head.dense")), "head.norm")
        if self._task.head is not Head.VOCABULARY:
            return self._linear(x, head_name(self._config, self._task))
        return x @ self._weights[EMBEDDING].T + self._weights.get(f"{MLM_HEAD}.bias", np.float32(0))

    def _relative_bias(self, tokens: int) -> Floats:
        """Return what is added to the scores of all layers, (A, T, T), or one 0 where there is none."""
        if not self._config.relative_attention_num_buckets:
            return np.zeros((1, 1, 1), np.float32)
        biases = self._weights["bert.encoder.relative_attention_bias.weight"][bucket_table(tokens)]
        return biases.transpose(2, 0, 1)

    def _attention(self, x: Floats, bias: Floats, name: str) -> Floats:
        heads = (len(x), self._config.num_attention_heads, self._config.head_size)
        query, key, value = (
            self._linear(x, f"{name}.{part}").reshape(heads).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )  # (A, T, H / A)
        scores = query @ key.swapaxes(1, 2)  # (A, T, T)
        if self._config.pos_att_type:
            scores += self._distance_scores(query, key, name)
        scores = scores * np.float32(self._config.score_scale) + bias
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        attended: Floats = (weights @ value).swapaxes(0, 1).reshape(x.shape)
        return attended

    def _distance_scores(self, query: Floats, key: Floats, name: str) -> Floats:
        """Return the terms of queries and keys (A, T, D) with their distances, (A, T, T); DeBERTa's, equation 4."""
        config, (heads, tokens, size) = self._config, query.shape
        vectors = self._weights["bert.encoder.rel_embeddings.weight"]
        if config.norm_rel_ebd == "layer_norm":
            vectors = self._norm(vectors, "bert.encoder.LayerNorm")
        total: Floats = np.zeros((heads, tokens, tokens), np.float32)
        reads = {"c2p": (query, "key", "pos_key_proj"), "p2c": (key, "query", "pos_query_proj")}
        places = np.arange(tokens)
        rows = distance_rows(
            places[:, None] - places, config.distance_span, config.position_buckets, config.furthest
        )
        for term in config.pos_att_type:
            content, shared, own = reads[term]
            layer = f"{name}.{shared if config.share_att_key else own}"
            if (layer, term) not in self._distances:
                projected = vectors @ self._weights[f"{layer}.weight"].T + self._weights[f"{layer}.bias"]
                self._distances[layer, term] = projected.reshape(-1, heads, size).transpose(1, 2, 0)
            products = content @ self._distances[layer, term]  # (A, T, N)
            if term == "c2p":
                total += np.take_along_axis(products, rows[None], axis=2)
            else:
                total += np.take_along_axis(products, rows.T[None], axis=2).swapaxes(1, 2)
        return total

    def _linear(self, x: Floats, name: str) -> Floats:
        self._observe(name, x)
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", np.float32(0))

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        unit = centred / np.sqrt(variance + np.float32(self._config.layer_norm_eps))
        shift = self._weights.get(f"{name}.bias", np.float32(0))
        normed: Floats = unit * self._weights[f"{name}.weight"] + shift
        return normed


def convolve(x: Floats, weights: Weights, groups: int) -> Floats:
    """Return DeBERTa's convolution of a text's embeddings (T, H), which end in zeros."""
    kernel, bias = (weights[f"bert.encoder.conv.conv.{kind}"] for kind in ("weight", "bias"))
    width, inner, size = kernel.shape
    padded = np.pad(x, ((size // 2, size // 2), (0, 0))).reshape(-1, groups, inner)
    by_group = kernel.reshape(groups, width // groups, inner, size)
    parts = (np.einsum("tgi,goi->tgo", padded[at : at + len(x)], by_group[..., at]) for at in range(size))
    return sum(parts, np.float32(0)).reshape(x.shape).astype(np.float32) + bias


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


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": _gelu, "gelu_new": _gelu_new, "relu": _relu, "tanh": np.tanh,
    "silu": _sigmoid_gate(1.0), "quick_gelu": _sigmoid_gate(1.702),
}  # fmt: skip
_POOLINGS: dict[str, Callable[[Floats], Floats]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.float32(math.sqrt(len(x))),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1)).astype(np.float32),
    "lasttoken": lambda x: x[-1],
}
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip
