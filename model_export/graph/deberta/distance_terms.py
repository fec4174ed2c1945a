"""Scores of attention that depend on the distance of query and key: DeBERTa's, in packed rows.

A term is a product of queries, or of keys, with the vectors of distances. Those are constants of the graph, projected at
export. Inside a text, distances in a packed row are distances in the text; between texts they mean nothing, and are masked.

All places of a row have 2S - 1 distances between them. The product with their vectors in order, (S, 2S), holds each row's
scores one place further to the left than the row before. Cut out and read as rows of 2S - 1, they stand below each other.
No index is as large as the scores: at 12 heads of 64 and one thread, GatherElements took 2.3 times as long at 64 tokens
(1.5 ms and 0.65), 1.6 times at 128, and as long at 384.

A heads, D their size, N rows of the table of distances, S tokens in a row, R rows, Q queries in a row.
"""

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bert.bodies.deberta import DISTANCES, DISTANCES_NORM, TERMS, DebertaBody, distance_rows
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from model_export.graph.graph_builder import MICROSOFT
from model_export.graph.ops import GraphOps


def projected_distances(config: BertConfig, weights: Weights, name: str) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of distances as the layer's attention `name` reads them, (A, N, D) for each of its terms."""
    vectors, body = weights[DISTANCES], DebertaBody.of(config.body)
    if body.normalises_distances:
        centred = vectors - vectors.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(
            np.square(centred).mean(axis=-1, keepdims=True) + np.float32(config.layer_norm_eps)
        )
        vectors = (
            centred / deviation * weights[f"{DISTANCES_NORM}.weight"] + weights[f"{DISTANCES_NORM}.bias"]
        )
    found = {}
    for term in body.pos_att_type:
        shared, own = TERMS[term]
        layer = f"{name}.{shared if body.share_att_key else own}"
        projected = vectors @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        found[term] = projected.reshape(len(vectors), config.num_attention_heads, -1).swapaxes(0, 1)
    return found


def distance_table(config: BertConfig) -> NDArray[np.int64]:
    """Return the row of the table of distances for each distance from -F to F, (2F + 1,): F is the longest in a text."""
    body = DebertaBody.of(config.body)
    longest = max(body.furthest(config), config.max_position_embeddings)
    return distance_rows(np.arange(-longest, longest + 1), *body.distance_table(config))


class DistanceTerms:
    """Writes the terms of each layer; what all layers share is written once."""

    def __init__(self, ops: GraphOps) -> None:
        """Write with the operators of a device."""
        self._w, self._config, self._weights = ops.w, ops.config, ops.weights
        self._shared = dict[str, str]()

    def in_rows(self, query: str, key: str, name: str) -> str:
        """Write the sum of the terms, scaled, for all places of a row; queries and keys are (R, S, H); (R, A, S, S)."""
        w, reads = self._w, {"c2p": query, "p2c": key}
        terms = []
        for term, vectors in self._vectors(name).items():
            columns = self._columns(term)
            product = self._product(self.by_head(reads[term]), w.node("Gather", vectors, columns, axis=1))
            aligned = self._aligned(product)
            terms.append(aligned if term == "c2p" else w.node("Transpose", aligned, perm=[0, 1, 3, 2]))
        return self._sum(terms)

    def at_heads(self, query: str, key: str, name: str, places: str) -> str:
        """Write the same for queries (R, Q, H) at `places` (R, Q), indices into the R * S places; (R, A, Q, S)."""
        w = self._w
        rows = self._rows_at(places)
        terms = []
        for term, vectors in self._vectors(name).items():
            if term == "c2p":
                products, axis = self._product(self.by_head(query), vectors), 3  # (R, A, Q, N)
            else:
                products, axis = self._product(vectors, self.by_head(key)), 2  # (R, A, N, S)
            terms.append(w.node("GatherElements", products, rows, axis=axis))
        return self._sum(terms)

    def by_head(self, x: str) -> str:
        """Write (R, S, H) → (R, A, S, D)."""
        heads = self._w.constant("by_head", [0, 0, self._config.num_attention_heads, self._config.head_size])
        return self._w.node("Transpose", self._w.node("Reshape", x, heads), perm=[0, 2, 1, 3])

    def _vectors(self, name: str) -> dict[str, str]:
        found = projected_distances(self._config, self._weights, name)
        return {term: self._w.constant(f"{name}.{term}", vectors) for term, vectors in found.items()}

    def _product(self, first: str, second: str) -> str:
        """Write first (..., X, D) by second (..., Y, D), scaled: (..., X, Y)."""
        scale = DebertaBody.of(self._config.body).score_scale(self._config)
        return self._w.node("FusedMatMul", first, second, domain=MICROSOFT, transB=1, alpha=scale)

    def _sum(self, terms: list[str]) -> str:
        return self._w.node("Add", *terms) if len(terms) > 1 else terms[0]

    def _columns(self, term: str) -> str:
        """Write the rows of the table for the 2S distances of a term's product, (2S,).

        Queries read from the longest distance ahead down, keys up.
        """
        if term not in self._shared:
            w, width = self._w, self._width()
            count = w.node("Mul", width, w.constant("index_2", 2))
            upwards = w.node("Range", *self._zero_one(count))
            upwards = w.node("Sub", upwards, w.node("Sub", width, self._one()))  # -(S - 1) to S
            distances = upwards if term == "p2c" else w.node("Neg", upwards)
            self._shared[term] = self._rows_of(distances)
        return self._shared[term]

    def _aligned(self, product: str) -> str:
        """Write (R, A, S, 2S) → (R, A, S, S): entry j of row i was entry j - i + S - 1."""
        w = self._w
        if "begin" not in self._shared:
            shape = w.node("Shape", "text_ids")
            width = w.node("Slice", shape, w.constant("index_1d", [1]), w.constant("index_2d", [2]))
            rows = w.node("Slice", shape, w.constant("index_0d", [0]), w.constant("index_1d", [1]))
            one = w.constant("one_1d", [1])
            double = w.node("Mul", width, w.constant("two_1d", [2]))
            narrower = w.node("Sub", double, one)
            heads = w.constant("heads", [self._config.num_attention_heads])
            self._shared |= {
                "begin": w.node("Sub", width, one),
                "end": w.node("Sub", w.node("Mul", width, double), one),
                "shape": w.node("Concat", rows, heads, width, narrower, axis=0),
                "width_1d": width,
            }
        ends = self._shared["begin"], self._shared["end"], w.constant("axis_2", [2])
        line = w.node("Slice", w.node("Reshape", product, w.constant("in_lines", [0, 0, -1])), *ends)
        lines = w.node("Reshape", line, self._shared["shape"])
        return w.node(
            "Slice", lines, w.constant("index_0d", [0]), self._shared["width_1d"], w.constant("axis_3", [3])
        )

    def _rows_at(self, places: str) -> str:
        """Write the rows of the table of queries at `places` (R, Q) with all places of their row, (R, A, Q, S)."""
        w, width = self._w, self._width()
        inside = w.node("Mod", w.node("Cast", places, to=TensorProto.INT64), width)
        queries = w.node("Unsqueeze", inside, w.constant("axes_1_3", [1, 3]))
        distances = w.node("Sub", queries, w.node("Range", *self._zero_one(width)))  # (R, 1, Q, S)
        heads = w.constant("by_heads", [1, self._config.num_attention_heads, 1, 1])
        return w.node("Expand", self._rows_of(distances), heads)

    def _rows_of(self, distances: str) -> str:
        w, table = self._w, distance_table(self._config)
        longest = len(table) // 2
        place = w.node("Add", distances, w.constant("longest_distance", np.array(longest, np.int64)))
        ends = (self._zero(), w.constant("last_distance", np.array(2 * longest, np.int64)))
        return w.node("Gather", w.constant("distance_rows", table), w.node("Clip", place, *ends))

    def _width(self) -> str:
        """Write S."""
        if "width" not in self._shared:
            shape = self._w.node("Shape", "text_ids", start=1, end=2)
            self._shared["width"] = self._w.node("Squeeze", shape)
        return self._shared["width"]

    def _zero(self) -> str:
        return self._w.constant("index_0", 0)

    def _one(self) -> str:
        return self._w.constant("index_1", 1)

    def _zero_one(self, limit: str) -> tuple[str, str, str]:
        return self._zero(), limit, self._one()
