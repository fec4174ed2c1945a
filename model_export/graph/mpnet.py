"""MPNet's body in the graph: BERT's, with a bias of attention's scores by distance, the same in all layers.

Inside a text, distances in a packed row are distances in the text. Between texts they mean nothing, and are masked.
A heads, S tokens in a row.
"""

import numpy as np
from onnx import TensorProto

from bert.bodies.mpnet import FURTHEST, RELATIVE_BIAS, relative_buckets
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.graph_builder import text_places
from model_export.graph.ops import GraphOps


class MpnetRows(CpuOps):
    """Attention in rows, float32 or 8 bits."""

    def _allowed(self, row_heads: str) -> str:
        """Write the bias of all places of a row, (A, S, S), or of queries at places `row_heads` (R, Q), (R, A, Q, S)."""
        w = self.w
        width = w.node("Squeeze", w.node("Shape", "text_ids", start=1, end=2))
        places = w.node("Range", w.constant("index_0", 0), width, w.constant("index_1", 1))
        if not row_heads:
            return _by_distance(self, places, places)
        # Indices into the R * S places.
        queries = w.node("Mod", w.node("Cast", row_heads, to=TensorProto.INT64), width)
        return w.node("Transpose", _by_distance(self, queries, places), perm=[1, 0, 2, 3])


class MpnetInt8Ops(MpnetRows, Int8Ops):
    """The layers' products in 8 bits."""


class MpnetCudaOps(CudaOps):
    """The layers on a CUDA GPU."""

    def _score_bias(self) -> list[str]:
        places = text_places(self.w)
        bias = _by_distance(self, places, places)
        return [self.w.node("Unsqueeze", bias, self.w.constant("axis_0", [0]))]


def _by_distance(ops: GraphOps, queries: str, keys: str) -> str:
    """Write the bias of queries (..., Q) to keys (S,); (A, ..., Q, S)."""
    w, distances = ops.w, np.arange(-FURTHEST, FURTHEST + 1)
    table = ops.weights[RELATIVE_BIAS][relative_buckets(distances)].T  # (A, 2 * FURTHEST + 1)
    distance = w.node("Sub", w.node("Unsqueeze", queries, w.constant("last_axis", [-1])), keys)
    ends = (
        w.constant(name, np.array(n, np.int64))
        for name, n in (("nearest", 0), ("farthest", len(distances) - 1))
    )
    place = w.node("Add", distance, w.constant("middle", np.array(FURTHEST, np.int64)))
    by_distance = ops.constant(f"{RELATIVE_BIAS}.by_distance", table)
    return w.node("Gather", by_distance, w.node("Clip", place, *ends), axis=1)
