"""ModernBERT's operators on a CUDA GPU: one row without padding, float16. T tokens, H width, N texts, P positions."""

import numpy as np
from onnx import TensorProto

from bert.bodies.body import EMBEDDING
from model_export.graph.bert.cpu_ops import MASKED_SCORE
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.graph_builder import MICROSOFT, text_places
from model_export.graph.modern.ops import ModernOps


class ModernCudaOps(ModernOps, CudaOps):
    """Writes ModernBERT's layers for the layout "flat"."""

    def words(self) -> str:
        """Write the word embeddings; (T, H). Also what every attention shares."""
        w = self.w
        self._places = w.node(
            "Unsqueeze", w.node("Cast", "position_ids", to=TensorProto.INT64), w.constant("axis_1", [1])
        )
        self._masks = [[], [self._window_mask()]] if any(self.sliding) else [[]]
        return w.node("Gather", self.tensor(EMBEDDING), "input_ids")

    def add_and_norm(self, x: str, residual: str, norm: str) -> tuple[str, str]:
        """Write x + residual, and its LayerNorm."""
        normed, _, _, total = self.w.nodes(
            "SkipLayerNormalization",
            *(x, residual, *self.norm_parameters(norm)),
            outputs=4,
            domain=MICROSOFT,
            epsilon=self.config.layer_norm_eps,
        )
        return total, normed

    def of_norm(self, x: str, name: str, begin: int = 0, end: int | None = None) -> str:
        """Write x W + b, or outputs `begin` to `end` of it; (T, in) → (T, out)."""
        weight, *bias = self.linear_parameters(name, begin, end)
        return self.w.node("Gemm" if bias else "MatMul", x, weight, *bias)

    of_any = of_norm

    def attend(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention of queries and keys that are not yet rotated; (T, H) each to the same."""
        return self.w.node(
            "PackedMultiHeadAttention",
            *(self._rotated(query, layer), self._rotated(key, layer), value, ""),
            *("token_offset", "cumulative_lengths", *self._masks[self.sliding[layer]]),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )

    def queries_at_heads(self, x: str) -> str:
        """Return x: there is no packed attention of some queries."""
        return x

    def attend_at_heads(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention and take the head positions; (T, H) → (P, H)."""
        return self.w.node("Gather", self.attend(query, key, value, layer), "positions", axis=0)

    def _rotated(self, x: str, layer: int) -> str:
        """Write (T, H) rotated by the tokens' places."""
        w = self.w
        name, cos, sin = self.rotation(layer)
        middle = w.constant("axis_1", [1])
        rotated = w.node(
            "RotaryEmbedding",
            *(w.node("Unsqueeze", x, middle), self._places),
            *(self.constant(f"{name}.cos", cos), self.constant(f"{name}.sin", sin)),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return w.node("Squeeze", rotated, middle)

    def _window_mask(self) -> str:
        """Write what is added to the scores of layers with a window, (1, 1, longest, longest)."""
        # In 32 bits: of 8,192 places the table of distances has 0.27 GB.
        w, places = self.w, self.w.node("Cast", text_places(self.w), to=TensorProto.INT32)
        distance = w.node(
            "Abs", w.node("Sub", w.node("Unsqueeze", places, w.constant("axis_1", [1])), places)
        )
        near = w.node(
            "LessOrEqual", distance, w.constant("window", np.array(self.config.body.window, np.int32))
        )
        numbers = (np.array(number, np.float16) for number in (0, MASKED_SCORE))
        allowed, masked = (w.constant(f"mask_{number:g}", number) for number in numbers)
        return w.node("Unsqueeze", w.node("Where", near, allowed, masked), w.constant("axes_0_1", [0, 1]))
