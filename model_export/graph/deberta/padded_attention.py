"""DeBERTa's attention on a CUDA GPU. Packed attention has no scores that differ from text to text, so each text gets a row
of the longest one's length for attention, and for the convolution; all other layers run without padding, as BERT's do.

Nothing follows a tensor's shape: CUDA leaves that to the CPU, which the session does not allow.

N texts, L tokens of the longest, T tokens, H width, A heads, D their size, K rows of the table of distances.
"""

import numpy as np
from onnx import TensorProto

from bert.bodies.deberta import CONVOLUTION, DebertaBody
from model_export.graph.deberta.distance_terms import distance_table, projected_distances
from model_export.graph.deberta.neighbours import convolution_weights
from model_export.graph.graph_builder import MICROSOFT, text_places
from model_export.graph.ops import GraphOps

MASKED_SCORE = np.array(-1e4, np.float16)


class PaddedAttention:
    """Writes attention over a row for each text; what all layers share is written once."""

    def __init__(self, ops: GraphOps) -> None:
        """Write with the operators of a device."""
        self._w, self._config, self._weights, self._constant = ops.w, ops.config, ops.weights, ops.constant
        self._body = DebertaBody.of(ops.config.body)
        self._shared = dict[str, str]()

    def attention(self, joined: str, name: str) -> str:
        """Write attention of queries, keys and values side by side; (T, 3H) → (T, H)."""
        w, heads = self._w, self._config.num_attention_heads
        query, key, value = w.nodes("Split", self._padded(joined), outputs=3, axis=2, num_outputs=3)
        terms = self._terms(query, key, name)
        attended = w.node(
            "MultiHeadAttention",
            *(query, key, value, "", "", w.node("Add", terms, self._mask())),
            domain=MICROSOFT,
            num_heads=heads,
            scale=self._body.score_scale(self._config),
        )
        return self._unpadded(attended)

    def convolution(self, embedded: str) -> str:
        """Write the convolution of the embeddings of each text; (T, H) → (T, H)."""
        w, reach = self._w, self._body.conv_kernel_size // 2
        pads, axis = w.constant("around_rows", [0, reach, 0, 0, reach, 0]), w.constant("axis_1", [1])
        around = w.node("Pad", self._padded(embedded), pads)  # padding is zeros
        ends = [first - 2 * reach or np.iinfo(np.int64).max for first in range(2 * reach + 1)]
        moved = [
            w.node("Slice", around, w.constant(f"from_{n}", [n]), w.constant(f"to_{n}", [end]), axis)
            for n, end in enumerate(ends)
        ]
        weight, bias = convolution_weights(self._config, self._weights)
        product = w.node(
            "MatMul", w.node("Concat", *moved, axis=2), self._constant(f"{CONVOLUTION}.weight", weight)
        )
        convolved = w.node("Add", product, self._constant(f"{CONVOLUTION}.bias", bias))
        return w.activation(self._unpadded(convolved), self._body.conv_act)

    def _terms(self, query: str, key: str, name: str) -> str:
        """Write what distances add to the scores of queries and keys (N, L, H), (N, A, L, L)."""
        w, scale = self._w, np.float32(self._body.score_scale(self._config))
        heads = w.constant("by_head", [0, 0, self._config.num_attention_heads, self._config.head_size])
        terms = []
        for term, vectors in projected_distances(self._config, self._weights, name).items():
            read = w.node("Reshape", query if term == "c2p" else key, heads)
            # The scale comes before any sum: products of many features can pass float16's end.
            if term == "c2p":
                constant = self._constant(f"{name}.c2p", vectors.swapaxes(1, 2) * scale)
                products = w.node("MatMul", w.node("Transpose", read, perm=[0, 2, 1, 3]), constant)
            else:
                constant = self._constant(f"{name}.p2c", vectors * scale)
                products = w.node("MatMul", constant, w.node("Transpose", read, perm=[0, 2, 3, 1]))
            axis = 3 if term == "c2p" else 2
            terms.append(w.node("GatherElements", products, self._rows(), axis=axis))
        return w.node("Add", *terms) if len(terms) > 1 else terms[0]

    def _rows(self) -> str:
        """Write the rows of the table of distances for all pairs of places, (N, A, L, L)."""
        if "rows" not in self._shared:
            w, table = self._w, distance_table(self._config).astype(np.int32)
            longest = len(table) // 2
            places = self._places()
            distance = w.node("Sub", w.node("Unsqueeze", places, w.constant("last_axis", [-1])), places)
            place = w.node("Add", distance, w.constant("longest_distance", np.array(longest, np.int64)))
            ends = w.constant("index_0", 0), w.constant("last_distance", np.array(2 * longest, np.int64))
            rows = w.node("Gather", w.constant("distance_rows", table), w.node("Clip", place, *ends))
            none = w.node("Sub", "token_offset", "token_offset")  # (N, L)
            none = w.node("Unsqueeze", none, w.constant("axes_1_3", [1, 3]))
            of_heads = np.zeros((1, self._config.num_attention_heads, 1, 1), np.int32)
            none = w.node("Add", none, w.constant("none_by_head", of_heads))
            self._shared["rows"] = w.node("Add", none, rows)
        return self._shared["rows"]

    def _mask(self) -> str:
        """Write 0 at the tokens of a text and MASKED_SCORE after them, (N, 1, 1, L)."""
        if "mask" not in self._shared:
            w = self._w
            lengths = w.node("Unsqueeze", self._lengths(), w.constant("last_axis", [-1]))
            lengths = w.node("Cast", lengths, to=TensorProto.INT64)
            inside = w.node("LessOrEqual", self._places(), lengths)  # places count from 1
            seen, masked = w.constant("seen", np.array(0, np.float16)), w.constant("masked", MASKED_SCORE)
            mask = w.node("Where", inside, seen, masked)
            self._shared["mask"] = w.node("Unsqueeze", mask, w.constant("axes_1_2", [1, 2]))
        return self._shared["mask"]

    def _places(self) -> str:
        """Write 1, 2, 3 ... for the places of the longest text, (L,)."""
        if "places" not in self._shared:
            self._shared["places"] = text_places(self._w)
        return self._shared["places"]

    def _lengths(self) -> str:
        """Write the number of tokens of each text, (N,)."""
        if "lengths" not in self._shared:
            w = self._w
            first, last = w.constant("index_0d", [0]), w.constant("index_last_1d", [-1])
            second, end = w.constant("index_1d", [1]), w.constant("index_end_1d", [np.iinfo(np.int64).max])
            ends = w.node("Slice", "cumulative_lengths", second, end)
            self._shared["lengths"] = w.node("Sub", ends, w.node("Slice", "cumulative_lengths", first, last))
        return self._shared["lengths"]

    def _padded(self, x: str) -> str:
        """Write (T, X) → (N, L, X), zeros after each text."""
        return self._w.node("RestorePadding", x, "token_offset", domain=MICROSOFT)

    def _unpadded(self, x: str) -> str:
        """Write (N, L, X) → (T, X)."""
        found, *_ = self._w.nodes("RemovePadding", x, self._lengths(), domain=MICROSOFT, outputs=4)
        return found
