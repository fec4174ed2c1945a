"""The graph's parts as a CUDA GPU runs them fastest: one row without padding, float16, fused operators. T tokens."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, POSITIONS, SEGMENTS
from bert.errors import ExportError
from model_export.graph.graph_builder import MICROSOFT
from model_export.graph.ops import GraphOps
from model_export.graph.sparse import Floats, Largest, largest_on_gpu

LARGEST = float(np.finfo(np.float16).max)


class CudaOps(GraphOps):
    """Writes embeddings, attention, linear layers and the rest for the layout "flat"."""

    def inputs(self, *, text_ids: bool, one_position: bool) -> None:
        """Declare the inputs; `token_offset` and `cumulative_lengths` are those of PackedAttention."""
        for name in (*self.token_inputs, *(["text_ids"] if text_ids else [])):
            self.w.input(name, ["tokens"])
        self.w.input("token_offset", ["texts", "longest"])
        self.w.input("cumulative_lengths", ["texts_and_1"])
        self.w.input("positions", ["positions"])

    def embeddings(self) -> str:
        """Write the sum of the embeddings and its norm; (T, e or H). Also what every attention shares."""
        if self.config.widens_embeddings or not self.config.body.has_positions:
            return self._plain_embeddings()
        row = self.w.constant("axis_0", [0])
        ids, segments, places = (
            self.w.node("Unsqueeze", name, row) for name in ("input_ids", "segment_ids", "position_ids")
        )
        embedded, _ = self.w.nodes(  # the second output, a mask index, is not optional
            "EmbedLayerNormalization",
            ids,
            segments,
            *(self.tensor(table) for table in (EMBEDDING, POSITIONS, SEGMENTS)),
            *self.norm_parameters(EMBEDDINGS_NORM),
            "",
            places,
            outputs=2,
            domain=MICROSOFT,
            epsilon=self.config.layer_norm_eps,
        )
        self._attention_bias = self._score_bias()
        return self.w.node("Squeeze", embedded, row)

    def _plain_embeddings(self) -> str:
        """Write embeddings that the fused operator has no form of."""
        self._attention_bias = self._score_bias()
        total = self.w.node("Gather", self.tensor(EMBEDDING), "input_ids")
        total = self.w.node("Add", total, self.w.node("Gather", self.tensor(SEGMENTS), "segment_ids"))
        if self.config.body.has_positions:
            total = self.w.node("Add", total, self.w.node("Gather", self.tensor(POSITIONS), "position_ids"))
        return self.norm(self.widened(total), EMBEDDINGS_NORM)

    def project_embeddings(self, x: str, name: str) -> str:
        """Write the linear layer after the embeddings; (T, e) → (T, H)."""
        return self.linear(x, name)

    def _score_bias(self) -> list[str]:
        """Write what is added to the scores of every attention, (1, A, longest, longest); nothing in BERT."""
        return []

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its three projections; (T, H) → (T, H)."""
        return self.w.node(
            "PackedAttention",
            x,
            *self.joined_projections(name),
            "token_offset",
            "cumulative_lengths",
            *self._attention_bias,
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )

    def attention_at_heads(self, x: str, name: str) -> str:
        """Write self-attention and take the head positions; (T, H) → (P, H)."""
        return self.w.node("Gather", self.attention(x, name), "positions", axis=0)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half with its activation; (T, H) → (T, I)."""
        if self.config.hidden_act not in ("gelu", "gelu_new"):
            return self.w.activation(self.linear(x, name), self.config.hidden_act)
        # FastGelu is the tanh form, with the bias in it as BiasGelu has.
        fused = "FastGelu" if self.config.hidden_act == "gelu_new" else "BiasGelu"
        weight, bias = self.linear_parameters(name)
        return self.w.node(fused, self.w.node("MatMul", x, weight), bias, domain=MICROSOFT)

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + b + residual); (T, in) → (T, H)."""
        weight = self.constant(f"{dense}.weight.T", self.weights[f"{dense}.weight"].T)
        return self.w.node(
            "SkipLayerNormalization",
            self.w.node("MatMul", x, weight),
            residual,
            *self.norm_parameters(norm),
            *([self.tensor(f"{dense}.bias")] if f"{dense}.bias" in self.weights else []),
            domain=MICROSOFT,
            epsilon=self.config.layer_norm_eps,
        )

    def add_norm(self, x: str, residual: str, norm: str) -> str:
        """Write LayerNorm(x + residual)."""
        return self.w.node(
            "SkipLayerNormalization",
            x,
            residual,
            *self.norm_parameters(norm),
            domain=MICROSOFT,
            epsilon=self.config.layer_norm_eps,
        )

    def text_ids(self) -> str:
        """Return (T,): the text of each token."""
        return "text_ids"

    def vocabulary_product(self, x: str) -> Callable[[str, Floats], str]:
        """Return what writes x W (T, C) of x (T, e) and some pieces' vectors, in float16."""
        return super().vocabulary_product(self.w.node("Cast", x, to=TensorProto.FLOAT16))

    def largest_of_texts(self) -> Largest:
        """Return what writes the maxima over each text's tokens."""
        return largest_on_gpu(self.w)

    def to_float32(self, x: str) -> str:
        """Write a cast to the outputs' type."""
        return self.w.node("Cast", x, to=TensorProto.FLOAT)

    def constant(self, name: str, value: NDArray[np.float32]) -> str:
        """Write weights in float16; raises ExportError for one that it cannot hold."""
        return self.w.constant(name, to_half(name, value))


def to_half(name: str, value: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round to float16; raises ExportError where a value is too large for it."""
    largest = float(np.abs(value).max())
    if largest > LARGEST:
        raise ExportError(
            f"{name} holds {largest:g}, and float16 ends at {LARGEST:g}; export with --precision fp32"
        )
    return value.astype(np.float16)
