"""ModernBERT's operators in packed rows, float32. T = R * S tokens, H width, A heads, Q queries of a row, P positions.

Two forms of attention are in the graph, and the width of the rows decides: short rows take one mask of all pairs. In long
rows its scores would grow with the square of the width, so there the layers with a window look at blocks and their
neighbours, and the others take some queries at a time.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import TensorProto

from bert.bodies.body import EMBEDDING
from model_export.graph.bert.cpu_ops import MASKED_SCORE, CpuOps, product_block
from model_export.graph.graph_builder import MICROSOFT
from model_export.graph.modern.long_rows import LongRows
from model_export.graph.modern.ops import ModernOps
from model_export.graph.ops import GraphOps

SHORT = {True: 256, False: 512}
"""Largest width of rows that are short for layers with a window, and for the others.

With 12 heads of 64, blocks take as long as all pairs at 320 tokens, 0.8 of the time at 512 and 0.4 at 1,024. Some queries at
a time take 1.05 to 1.3 of the time.
"""


class ModernCpuOps(ModernOps, CpuOps):
    """Writes ModernBERT's layers for the layout "rows"."""

    norm_parameters = GraphOps.norm_parameters

    def words(self) -> str:
        """Write the word embeddings; (T, H). Also what every attention shares."""
        w = self.w
        tokens = w.constant("all", [-1])
        shape = w.node("Shape", "input_ids")
        self._row_shape = w.node("Concat", shape, w.constant("width", [self.config.hidden_size]), axis=0)
        self._width = w.node("Squeeze", w.node("Shape", "input_ids", start=1, end=2))
        self._places = w.node("Cast", w.node("Reshape", "position_ids", tokens), to=TensorProto.INT64)
        self._long = LongRows(w, self.config, self._row_shape, self.seen_ids())
        kinds = sorted(set(self.sliding))
        # Not above the block of a product: by blocks a text that is longer gets other bits.
        short = {**SHORT, True: min(SHORT[True], product_block(self.config.head_size))}
        self._is_long = {sliding: self._is_wider(short[sliding]) for sliding in kinds}
        self._masks = {
            sliding: w.choose(
                self._is_long[sliding], partial(self._long.mask, sliding), partial(self._short_mask, sliding)
            )[0]
            for sliding in kinds
        }
        return w.node("Gather", self.tensor(EMBEDDING), w.node("Reshape", "input_ids", tokens))

    def add_and_norm(self, x: str, residual: str, norm: str) -> tuple[str, str]:
        """Write x + residual, and its LayerNorm."""
        total = self.w.node("Add", x, residual)
        return total, self.norm(total, norm)

    def of_norm(self, x: str, name: str, begin: int = 0, end: int | None = None) -> str:
        """Write x W + b of a LayerNorm's output x, or outputs `begin` to `end` of it; (T, H) → (T, end - begin)."""
        return self.linear(x, name, begin, end)

    def of_any(self, x: str, name: str) -> str:
        """Write x W + b of other vectors; (T, in) → (T, H)."""
        return self.linear(x, name)

    def attend(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention of queries and keys that are not yet rotated; (T, H) each to the same."""
        query, key = (self._rotated(x, self._places, layer) for x in (query, key))
        sliding = self.sliding[layer]
        (attended,) = self.w.choose(
            self._is_long[sliding],
            lambda: self._long.attend(query, key, value, self._masks[True] if sliding else ""),
            lambda: self._attend_in_rows(query, key, value, self._masks[sliding]),
        )
        return attended

    def queries_at_heads(self, x: str) -> str:
        """Write the vectors at the rows' head positions; (T, H) → (R * Q, H)."""
        return self.w.node("Gather", x, self._head_places(), axis=0)

    def attend_at_heads(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention of queries (R * Q, H) to rows, in the texts' order; (P, H)."""
        w, heads = self.w, self._head_places()
        query = self._rotated(query, w.node("Gather", self._places, heads), layer)
        shape = w.node(
            "Concat", w.node("Shape", "row_heads"), w.constant("width", [self.config.hidden_size]), axis=0
        )
        rows = [self._in_rows(x) for x in (self._rotated(key, self._places, layer), value)]
        texts = w.node("Gather", self.text_ids(), "row_heads")
        attended = w.node(
            "MultiHeadAttention",
            *(w.node("Reshape", query, shape), *rows, "", "", self._mask_of_heads(texts, layer)),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return w.node("Gather", self.as_tokens(attended), "head_order", axis=0)

    def _rotated(self, x: str, places: str, layer: int) -> str:
        """Write (T, H) rotated by the tokens' places (T,)."""
        w = self.w
        name, cos, sin = self.rotation(layer)
        # A row may be longer than the tables, of which the operator looks at the shape: each token is a row of its own.
        middle = w.constant("axis_1", [1])
        rotated = w.node(
            "RotaryEmbedding",
            w.node("Unsqueeze", x, middle),
            w.node("Unsqueeze", places, middle),
            w.constant(f"{name}.cos", cos),
            w.constant(f"{name}.sin", sin),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return w.node("Squeeze", rotated, middle)

    def _is_wider(self, tokens: int) -> str:
        """Write whether rows are wider."""
        return self.w.node(
            "Greater", self._width, self.w.constant(f"width_{tokens}", np.array(tokens, np.int64))
        )

    def _short_mask(self, sliding: bool) -> Sequence[str]:
        """Write what is added to the scores of layers with a window, or of those without, (R, 1, S, S)."""
        mask = self._bias("text_ids")
        if not sliding:
            return [mask]
        places = self._row_places()
        near = self._near(self.w.node("Unsqueeze", places, self.w.constant("last_axis", [-1])), places)
        return [self.w.node("Where", near, mask, self.w.constant("masked", MASKED_SCORE))]

    def _row_places(self) -> str:
        first, step = (self.w.constant(f"number_{n}", np.array(n, np.int64)) for n in (0, 1))
        return self.w.node("Range", first, self._width, step)

    def _near(self, queries: str, keys: str) -> str:
        """Write which pairs of places are within the window."""
        distance = self.w.node("Abs", self.w.node("Sub", queries, keys))
        return self.w.node(
            "LessOrEqual", distance, self.w.constant("window", np.array(self.config.body.window, np.int64))
        )

    def _mask_of_heads(self, texts: str, layer: int) -> str:
        """Write what is added to the scores of queries of these texts (R, Q), (R, 1, Q, S)."""
        mask = self._bias(texts)
        if not self.sliding[layer]:
            return mask
        w = self.w
        queries = w.node("Mod", w.node("Cast", "row_heads", to=TensorProto.INT64), self._width)
        queries = w.node("Unsqueeze", queries, w.constant("axes_1_3", [1, 3]))
        near = self._near(queries, self._row_places())
        return w.node("Where", near, mask, w.constant("masked", MASKED_SCORE))

    def _attend_in_rows(self, query: str, key: str, value: str, mask: str) -> Sequence[str]:
        attended = self.w.node(
            "MultiHeadAttention",
            *(self._in_rows(x) for x in (query, key, value)),
            *("", "", mask),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return [self.as_tokens(attended)]

    def _head_places(self) -> str:
        return self.w.node("Reshape", "row_heads", self.w.constant("all", [-1]))
