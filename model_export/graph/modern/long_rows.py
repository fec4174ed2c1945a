"""Attention in rows so wide that the scores of all pairs would fill the memory: its cost follows the window.

T = R * S tokens, H width, B tokens in a block, N blocks of all rows, M blocks of a row, Q queries at a time.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from onnx import TensorProto

from bert.bodies.modern import ModernBody
from bert.config import BertConfig
from model_export.graph.bert.cpu_ops import MASKED_SCORE, product_block
from model_export.graph.graph_builder import MICROSOFT, GraphWriter
from model_export.graph.ops import NO_TEXT

SMALLEST_BLOCK = 64
QUERIES = 256
"""Queries of a row whose scores are in memory at once: R * S * A * QUERIES numbers."""


class LongRows:
    """Writes masks once a graph, and attention once a layer."""

    def __init__(self, writer: GraphWriter, config: BertConfig, row_shape: str, seen_ids: str) -> None:
        """`row_shape` is the tensor (R, S, H), `seen_ids` the text (R, S) of each token that others attend to."""
        self._w, self._config, self._row_shape, self._seen_ids = writer, config, row_shape, seen_ids
        self._window = config.body.window

    @cached_property
    def _block(self) -> int:
        return block_size(self._config)

    def mask(self, sliding: bool) -> Sequence[str]:
        """Write what is added to the scores of blocks, (N, 1, B, 3B); nothing of use for layers without a window."""
        w = self._w
        if not sliding:
            return [w.node("Identity", w.constant("no_mask", np.zeros((1, 1, 1, 1), np.float32)))]
        ids = dict.fromkeys(("text_ids", self._seen_ids))
        columns = [w.node("Unsqueeze", each, w.constant("last_axis", [-1])) for each in ids]
        blocks, *others = (self._blocks(column, 1, NO_TEXT) for column in columns)
        seen = others[0] if others else blocks
        own, around = self._own(blocks, 1), self._around(seen, 1)
        same = w.node(
            "Equal",
            w.node("Unsqueeze", own, w.constant("axis_1", [1])),  # (N, 1, B, 1)
            w.node("Unsqueeze", w.node("Transpose", around, perm=[0, 2, 1]), w.constant("axis_1", [1])),
        )
        places = np.arange(3 * self._block)
        near = np.abs(places[self._block : 2 * self._block, None] - places) <= self._window
        visible = w.node("And", same, w.constant("near", near))
        return [w.node("Where", visible, w.constant("allowed", 0.0), w.constant("masked", MASKED_SCORE))]

    def attend(self, query: str, key: str, value: str, mask: str) -> Sequence[str]:
        """Write attention of (T, H) each: in blocks with their mask, or without one of some queries at a time."""
        return [self._in_blocks(query, key, value, mask) if mask else self._in_steps(query, key, value)]

    def _in_blocks(self, query: str, key: str, value: str, mask: str) -> str:
        """Write attention of each block's queries to itself and its neighbours."""
        width = self._config.hidden_size
        query, key, value = (self._blocks(self._in_rows(x), width) for x in (query, key, value))
        attended = self._attention(
            self._own(query, width), self._around(key, width), self._around(value, width), mask
        )
        return self._cut(attended)

    def _blocks(self, x: str, width: int, filling: int = 0) -> str:
        """Write rows (R, S, width) in blocks (R, M + 2, B, width): filled up, with a block of filling on each side.

        Blocks are those of a row, so that a text's places in them depend on its place in the row alone.
        """
        w, zero, size = self._w, vector(self._w, 0), vector(self._w, self._block)
        after = w.node("Add", self._missing(size), size)
        pads = w.node("Concat", *(zero, size, zero, zero, after, zero), axis=0)
        value = [w.constant("filling_texts", np.array(filling, np.int32))] if filling else []
        shape = w.constant(f"blocks_{width}", [0, -1, self._block, width])
        return w.node("Reshape", w.node("Pad", x, pads, *value), shape)

    def _own(self, blocks: str, width: int) -> str:
        """Write (N, B, width), without the filling on the sides."""
        own = self._slice(blocks, 1, -1)
        return self._w.node("Reshape", own, self._w.constant(f"block_{width}", [-1, self._block, width]))

    def _around(self, blocks: str, width: int) -> str:
        """Write (N, 3B, width), each block between its neighbours."""
        w, end = self._w, np.iinfo(np.int64).max
        parts = (self._slice(blocks, *ends) for ends in ((0, -2), (1, -1), (2, end)))
        joined = w.node("Concat", *parts, axis=2)
        return w.node("Reshape", joined, w.constant(f"blocks_around_{width}", [-1, 3 * self._block, width]))

    def _slice(self, x: str, begin: int, end: int) -> str:
        w = self._w
        return w.node("Slice", x, vector(w, begin), vector(w, end), w.constant("axis_1", [1]))

    def _missing(self, step: str) -> str:
        """Write how many tokens a row lacks to a multiple of a step."""
        return self._w.node("Mod", self._w.node("Neg", self._row_width()), step)

    def _row_width(self) -> str:
        return self._w.node("Slice", self._row_shape, vector(self._w, 1), vector(self._w, 2))

    def _cut(self, x: str) -> str:
        """Write (..., H), rows that are filled up, without what fills them; (T, H)."""
        w, width = self._w, self._config.hidden_size
        shape = w.node("Slice", self._row_shape, vector(w, 0), vector(w, 1))
        filled = w.node("Concat", shape, w.constant("rest_and_width", [-1, width]), axis=0)
        rows = w.node("Reshape", x, filled)
        cut = w.node("Slice", rows, vector(w, 0), self._row_width(), w.constant("axis_1", [1]))
        return w.node("Reshape", cut, w.constant("tokens_shape", [-1, width]))

    def _in_steps(self, query: str, key: str, value: str) -> str:
        """Write attention of QUERIES places of all rows at a time to whole rows."""
        w, zero, size = self._w, vector(self._w, 0), vector(self._w, QUERIES)
        key, value = (self._in_rows(x) for x in (key, value))
        missing = self._missing(size)
        pads = w.node("Concat", zero, zero, zero, zero, missing, zero, axis=0)
        filled = w.node("Pad", self._in_rows(query), pads)
        no_text = w.constant("filling_texts", np.array(NO_TEXT, np.int32))
        texts = w.node("Pad", "text_ids", w.node("Concat", zero, zero, zero, missing, axis=0), no_text)
        steps = w.node("Squeeze", w.node("Div", w.node("Add", self._row_width(), missing), size))
        across = w.node("Unsqueeze", self._seen_ids, w.constant("axes_1_2", [1, 2]))

        def step() -> Sequence[str]:
            begin = w.node("Mul", w.node("Unsqueeze", number, w.constant("axis_0", [0])), size)
            end = w.node("Add", begin, size)
            some, of = (w.node("Slice", x, begin, end, w.constant("axis_1", [1])) for x in (filled, texts))
            same = w.node("Equal", w.node("Unsqueeze", of, w.constant("axes_1_3", [1, 3])), across)
            mask = w.node("Where", same, w.constant("allowed", 0.0), w.constant("masked", MASKED_SCORE))
            attended = self._attention(some, key, value, mask)
            return [w.node("Identity", go_on), attended]

        number, go_on = w.unique("step"), w.unique("go_on")
        body = w.subgraph(step, [(number, TensorProto.INT64, []), (go_on, TensorProto.BOOL, [])])
        found = w.node("Loop", steps, w.constant("true", np.array(True)), body=body)  # (steps, R, Q, H)
        return self._cut(w.node("Transpose", found, perm=[1, 0, 2, 3]))

    def _in_rows(self, x: str) -> str:
        return self._w.node("Reshape", x, self._row_shape)

    def _attention(self, query: str, key: str, value: str, mask: str) -> str:
        return self._w.node(
            "MultiHeadAttention",
            *(query, key, value, "", "", mask),
            domain=MICROSOFT,
            num_heads=self._config.num_attention_heads,
        )


def block_size(config: BertConfig) -> int:
    """Return the tokens of a block, no fewer than the window's.

    Three blocks are summed at once, or each is a multiple of what is: then a text's bits do not depend on its neighbours.
    """
    summed = product_block(config.head_size)
    size = max(SMALLEST_BLOCK, ModernBody.of(config.body).window)
    size += -size % 4
    return size if 3 * size <= summed else size + -size % summed


def vector(w: GraphWriter, number: int) -> str:
    """Write a whole number as a vector of one."""
    return w.constant(f"vector_{number}", [number])
