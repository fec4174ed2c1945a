"""A text's largest score of each piece of the vocabulary, written so that no run holds the scores of all its tokens.

T tokens, N texts, e width of the vocabulary's table, V vocabulary, C pieces of a slice.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bert.bodies.body import EMBEDDING
from model_export.graph.graph_builder import Dim, GraphWriter, text_places

SLICE = 4096
"""Pieces whose scores are worked out together: 64 MiB for 4,096 tokens."""

Floats = NDArray[np.float32]
Largest = Callable[[str], str]
"""Writes the maxima (N, C) over each text's tokens of scores (T, C)."""


def write_largest(
    w: GraphWriter, product: Callable[[str, Floats], str], largest: Largest, table: Floats, bias: str | None
) -> str:
    """Write the largest score of each text and piece, or 0 where that is below 0; float32 (N, V).

    `product` writes the scores (T, C) of pieces, by a name and the transposed part (e, C) of the `table` (V, e). The bias
    (V,) can wait until the maxima are there: it is the same at every token.
    """
    parts = []
    for begin in range(0, len(table), SLICE):
        scores = product(f"{EMBEDDING}.{begin}.T", table[begin : begin + SLICE].T)
        parts.append(w.node("Cast", largest(scores), to=TensorProto.FLOAT))
    found = w.node("Concat", *parts, axis=1)
    return w.node("Relu", found if bias is None else w.node("Add", found, bias))


def largest_in_rows(w: GraphWriter, text_ids: str) -> Largest:
    """Write where texts in packed rows begin and end; return what takes their maxima, one text after the other.

    `text_ids` is (T,), -1 for padding.
    """
    axis = w.constant("axis_1", [1])
    # Any token of a text names it: here its [CLS].
    order = w.node("Gather", text_ids, "positions", axis=0)
    belongs = w.node("Equal", w.node("Unsqueeze", order, axis), text_ids)  # (N, T)
    lengths = w.node("ReduceSum", w.node("Cast", belongs, to=TensorProto.INT64), axis, keepdims=0)
    begins = w.node("Cast", "positions", to=TensorProto.INT64)
    ends = w.node("Add", begins, lengths)
    texts, always = w.node("Squeeze", w.node("Shape", "positions")), w.constant("always", np.array(True))
    first = w.constant("axes_0", [0])

    def largest(scores: str) -> str:
        text, goes_on = w.unique("text"), w.unique("goes_on")

        def body() -> list[str]:
            number = w.node("Unsqueeze", text, first)
            begin, end = (w.node("Gather", places, number, axis=0) for places in (begins, ends))
            own = w.node("Slice", scores, begin, end, first)
            return [w.node("Identity", goes_on), w.node("ReduceMax", own, first, keepdims=0)]

        inputs: list[tuple[str, int, list[Dim]]] = [
            (text, TensorProto.INT64, []),
            (goes_on, TensorProto.BOOL, []),
        ]
        return w.node("Loop", texts, always, body=w.subgraph(body, inputs))

    return largest


def largest_on_gpu(w: GraphWriter) -> Largest:
    """Write the places of the tokens, each text as long as the longest one; return what takes their maxima.

    A loop would run on the CPU, which the session does not allow. Shorter texts repeat their last token.
    """
    axis, one = w.constant("axis_1", [1]), w.constant("index_1", 1)
    begins = w.node("Cast", "positions", to=TensorProto.INT64)
    cumulative = w.node("Cast", "cumulative_lengths", to=TensorProto.INT64)
    after_first, no_end = w.constant("from_1", [1]), w.constant("no_end", [np.iinfo(np.int64).max])
    lasts = w.node("Sub", w.node("Slice", cumulative, after_first, no_end), one)
    reached = w.node("Add", w.node("Unsqueeze", w.node("Sub", begins, one), axis), text_places(w))
    tokens = w.node("Min", reached, w.node("Unsqueeze", lasts, axis))  # (N, longest)
    return lambda scores: w.node("ReduceMax", w.node("Gather", scores, tokens, axis=0), axis, keepdims=0)
