"""DeBERTa's operators for each kind of device: BERT's, with distances in attention and a convolution.

T = R * S tokens, H width, Q queries in a row, P positions.
"""

from abc import abstractmethod
from functools import cached_property

from bert.bodies.deberta import CONVOLUTION, DebertaBody
from bert.config import BertConfig
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.deberta.distance_terms import DistanceTerms
from model_export.graph.deberta.neighbours import convolution_weights, neighbours
from model_export.graph.deberta.padded_attention import PaddedAttention
from model_export.graph.ops import GraphOps

_FIRST_OUTPUT = "bert.encoder.layer.0.output.LayerNorm"


class DebertaOps(GraphOps):
    """Operators shared by the graphs for CPU and CUDA."""

    @cached_property
    def body(self) -> DebertaBody:
        """Words of the body in `config.json`."""
        return DebertaBody.of(self.config.body)

    @abstractmethod
    def convolution(self, embedded: str) -> str:
        """Write the convolution of embeddings within each text, with its activation; (T, H) → (T, H)."""

    def after_first(self, embedded: str, x: str, *, gathers: bool) -> str:
        """Write the first layer's output with the convolution of the embeddings added, where there is one."""
        if self.body.conv_kernel_size < 1:
            return x
        convolved = self.convolution(embedded)
        if gathers:
            convolved = self.w.node("Gather", convolved, "positions", axis=0)
        return self.add_norm(x, convolved, f"{CONVOLUTION}.LayerNorm")


class DebertaRows(DebertaOps, CpuOps):
    """Operators shared by the CPU graphs in float32 and 8 bits."""

    @cached_property
    def _terms(self) -> DistanceTerms:
        return DistanceTerms(self)

    def _attended_rows(self, query: str, key: str, value: str, name: str) -> str:
        bias = self._attention_bias
        if self.body.pos_att_type:
            bias = self.w.node("Add", self._terms.in_rows(query, key, name), bias)
        return self._multi_head(query, key, value, bias)

    def _bias_at_heads(self, query: str, key: str, name: str, bias: str) -> str:
        if not self.body.pos_att_type:
            return bias
        return self.w.node("Add", self._terms.at_heads(query, key, name, "row_heads"), bias)

    def _product_scale(self) -> dict[str, float]:
        return {"scale": self.body.score_scale(self.config)} if self.body.pos_att_type else {}

    def convolution(self, embedded: str) -> str:
        """Write the convolution of embeddings within each text, with its activation; (T, H) → (T, H)."""
        body = self.body
        moved = neighbours(self.w, self._in_rows(embedded), body.conv_kernel_size // 2)
        joined = self.w.node("Concat", *moved, axis=2)
        weight, bias = convolution_weights(self.config, self.weights)
        wide = self.w.constant("wide_tokens", [-1, len(weight)])
        constants = (
            self.w.constant(f"{CONVOLUTION}.weight", weight),
            self.w.constant(f"{CONVOLUTION}.bias", bias),
        )
        convolved = self.w.node("Gemm", self.w.node("Reshape", joined, wide), *constants)
        return self.w.activation(convolved, body.conv_act)


class DebertaCpuOps(DebertaRows):
    """The layers in rows, float32."""

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its three projections; (T, H) → (T, H)."""
        if not self.body.pos_att_type:
            return super().attention(x, name)
        joined = self.w.node("Gemm", x, *self.joined_projections(name))
        parts = self.w.nodes("Split", joined, outputs=3, axis=1, num_outputs=3)
        query, key, value = map(self._in_rows, parts)
        return self._attended_rows(query, key, value, name)


class DebertaInt8Ops(DebertaRows, Int8Ops):
    """The layers' products in 8 bits."""

    def norm_parameters(self, name: str) -> list[str]:
        """Write a norm's scale and shift; the norm of the convolution takes in the bias that another first output has."""
        if name == _FIRST_OUTPUT and self.body.conv_kernel_size > 0:
            return GraphOps.norm_parameters(self, name)
        return super().norm_parameters(name)

    def convolution(self, embedded: str) -> str:
        """Write the convolution in float32, of the embeddings without the bias that their norm has taken in."""
        bias = self.weights["bert.encoder.layer.0.attention.output.dense.bias"]
        plain = self.w.node("Sub", embedded, self.w.constant(f"{CONVOLUTION}.residual", bias))
        return super().convolution(plain)


class DebertaCudaOps(DebertaOps, CudaOps):
    """The layers on a CUDA GPU."""

    @cached_property
    def _padded(self) -> PaddedAttention:
        return PaddedAttention(self)

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its three projections; (T, H) → (T, H)."""
        if not self.body.pos_att_type:
            return super().attention(x, name)
        return self._padded.attention(self.w.node("Gemm", x, *self.joined_projections(name)), name)

    def convolution(self, embedded: str) -> str:
        """Write the convolution of embeddings within each text, with its activation; (T, H) → (T, H)."""
        return self._padded.convolution(embedded)


def attention_cost(config: BertConfig) -> dict[str, int]:
    """Return how often the scores are summed, as the manifest has it; empty where they do not depend on distances."""
    kept = kept_scores(config)
    return {"scores": kept} if kept else {}


def kept_scores(config: BertConfig) -> int:
    """Return the number of tensors as large as the scores: each term is one."""
    terms = DebertaBody.of(config.body).pos_att_type
    return 1 + len(terms) if terms else 0
