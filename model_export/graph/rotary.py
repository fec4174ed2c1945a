"""The layers of nomic-bert and gte in the graph: BERT's, with ModernBERT's attention without a window, and gated.

T tokens, H width, I the gated layer's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bert.bodies.body import EMBEDDINGS_NORM, SEGMENTS
from bert.bodies.rotary import RotaryBody
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.modern.cpu_ops import ModernCpuOps
from model_export.graph.modern.cuda_ops import ModernCudaOps
from model_export.graph.modern.ops import ModernOps
from model_export.graph.ops import GraphOps

_PARTS = ("query", "key", "value")


class RotaryOps(ModernOps):
    """Operators shared by all graphs."""

    token_inputs = GraphOps.token_inputs

    @cached_property
    def sliding(self) -> tuple[bool, ...]:
        """False for each layer: all see the whole text."""
        return (False,) * self.config.num_hidden_layers

    def theta_and_divisor(self, layer: int) -> tuple[float, float]:
        """Return the base of the rotations, and what they are divided by."""
        body = RotaryBody.of(self.config.body)
        return body.theta, body.divisor

    def embeddings(self) -> str:
        """Write the sum of words and segments, and its norm; (T, H). Also what every attention shares."""
        ids = self.w.node("Reshape", "segment_ids", self.w.constant("all", [-1]))
        segments = self.w.node("Gather", self.tensor(SEGMENTS), ids)
        return self.norm(self.w.node("Add", self.words(), segments), EMBEDDINGS_NORM)


class RotaryFloatOps(RotaryOps):
    """Products of the graphs in float32 and float16."""

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its three projections; (T, H) → (T, H)."""
        query, key, value = self._joined(x, name, [f"{name}.{part}" for part in _PARTS])
        return self.attend(query, key, value, 0)

    def attention_at_heads(self, x: str, name: str) -> str:
        """Write self-attention and take the head positions; (T, H) → (P, H)."""
        query = self.linear(self.queries_at_heads(x), f"{name}.query")
        key, value = self._joined(x, f"{name}.key_value", [f"{name}.{part}" for part in _PARTS[1:]])
        return self.attend_at_heads(query, key, value, 0)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half: one product, activated, times the other; (T, H) → (T, I)."""
        at = name.removesuffix(".dense")
        inner, gate = self._joined(x, at, [name, f"{at}.up"])
        return self.w.node("Mul", self.w.activation(inner, self.config.hidden_act), gate)

    def _joined(self, x: str, name: str, layers: Sequence[str]) -> list[str]:
        """Write the outputs of several linear layers, whose product is one; (T, in) → (T, out) each."""
        weight, *bias = self.joined_parameters(name, layers)
        product = self.w.node("Gemm" if bias else "MatMul", x, weight, *bias)
        return self.w.nodes("Split", product, outputs=len(layers), axis=-1, num_outputs=len(layers))


class RotaryCpuOps(RotaryFloatOps, ModernCpuOps):
    """The layers in rows, float32."""


class RotaryCudaOps(RotaryFloatOps, ModernCudaOps):
    """The layers on a CUDA GPU."""


class RotaryInt8Ops(RotaryOps, ModernCpuOps, Int8Ops):
    """The layers' products in 8 bits, as BERT's.

    The smoothing factors of the gated product are taken by the half of it that is not activated.
    """

    is_gated = True
    norm_parameters = Int8Ops.norm_parameters

    def _attended_rows(self, query: str, key: str, value: str, name: str) -> str:
        query, key, value = map(self.as_tokens, (query, key, value))
        return self.attend(query, key, value, 0)

    def _attended_heads(self, query: str, key: str, value: str, name: str) -> str:
        query, key, value = map(self.as_tokens, (query, key, value))
        return self.attend_at_heads(query, key, value, 0)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half, smoothed for its second; (T, H) → (T, I)."""
        at = name.removesuffix(".intermediate.dense")
        output = self._from_checkpoint(f"{at}.output.dense")
        inner, gate = (self._from_checkpoint(f"{at}.intermediate.{part}") for part in ("dense", "up"))
        gate = replace(gate, output_factors=np.float32(1) / self._factors(output))
        fixed = self._fixed_input(x, [inner, gate], output)
        first, second = (self._fixed_product(fixed.quantised, each, fixed) for each in (inner, gate))
        return self.w.node("Mul", self.activation(first), second)
