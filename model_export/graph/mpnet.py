"""MPNet's body in the graph: BERT's, with a bias of attention's scores by distance, the same in all layers.

Inside a text, distances in a packed row are distances in the text. Between texts they mean nothing, and are masked.
A heads, S tokens in a row.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bert.bodies.mpnet import FURTHEST, RELATIVE_BIAS, relative_buckets
from bert.checkpoint.tensor_names import Weights
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps, to_half
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.graph_builder import GraphWriter, text_places

Convert = Callable[[str, NDArray[np.float32]], NDArray[Any]]


def in_rows(w: GraphWriter, weights: Weights, row_heads: str = "") -> str:
    """Write the bias of all places of a row, (A, S, S), or of queries at places `row_heads` (R, Q), (R, A, Q, S)."""
    width = w.node("Shape", "text_ids", start=1, end=2)
    width = w.node("Squeeze", width)
    zero, one = w.constant("index_0", 0), w.constant("index_1", 1)
    places = w.node("Range", zero, width, one)
    if not row_heads:
        return _by_distance(w, weights, places, places)
    # Indices into the R * S places.
    queries = w.node("Mod", w.node("Cast", row_heads, to=TensorProto.INT64), width)
    return w.node("Transpose", _by_distance(w, weights, queries, places), perm=[1, 0, 2, 3])


def in_texts(w: GraphWriter, weights: Weights, convert: Convert) -> str:
    """Write the bias of all places of the longest text, (1, A, longest, longest); `convert` gives the table its type."""
    places = text_places(w)
    bias = _by_distance(w, weights, places, places, convert)
    return w.node("Unsqueeze", bias, w.constant("axis_0", [0]))


def _by_distance(
    w: GraphWriter, weights: Weights, queries: str, keys: str, convert: Convert = lambda name, table: table
) -> str:
    """Write the bias of queries (..., Q) to keys (S,); (A, ..., Q, S)."""
    distances = np.arange(-FURTHEST, FURTHEST + 1)
    table = weights[RELATIVE_BIAS][relative_buckets(distances)].T  # (A, 2 * FURTHEST + 1)
    distance = w.node("Sub", w.node("Unsqueeze", queries, w.constant("last_axis", [-1])), keys)
    ends = (
        w.constant(name, np.array(n, np.int64))
        for name, n in (("nearest", 0), ("farthest", len(distances) - 1))
    )
    place = w.node("Add", distance, w.constant("middle", np.array(FURTHEST, np.int64)))
    name = f"{RELATIVE_BIAS}.by_distance"
    return w.node("Gather", w.constant(name, convert(name, table)), w.node("Clip", place, *ends), axis=1)


class MpnetRows(CpuOps):
    """Attention in rows, float32 or 8 bits."""

    def _allowed(self, row_heads: str) -> str:
        return in_rows(self.w, self.weights, row_heads)


class MpnetInt8Ops(MpnetRows, Int8Ops):
    """The layers' products in 8 bits."""


class MpnetCudaOps(CudaOps):
    """The layers on a CUDA GPU."""

    def _score_bias(self) -> list[str]:
        return [in_texts(self.w, self._weights, to_half)]
