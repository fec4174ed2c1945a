"""The convolution of the large DeBERTa-v2, as one product of each token's neighbours. H width, K neighbours, S tokens."""

import numpy as np
from numpy.typing import NDArray

from bert.bodies.deberta import CONVOLUTION, DebertaBody
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from model_export.graph.graph_builder import GraphWriter


def neighbours(w: GraphWriter, rows: str, reach: int) -> list[str]:
    """Write the neighbours of rows (R, S, H) at each offset from -reach to reach; zeros where they are of another text."""
    if not reach:
        return [rows]
    # No text has the number of what surrounds a row.
    outside = w.constant("outside", np.array(-2, np.int32))
    texts = w.node("Pad", "text_ids", w.constant("around_texts", [0, reach, 0, reach]), outside)
    around = w.node("Pad", rows, w.constant("around_rows", [0, reach, 0, 0, reach, 0]))
    zero, axis = w.constant("zero_float", 0.0), w.constant("axis_1", [1])
    width = w.node("Shape", "text_ids", start=1, end=2)
    found = []
    for first in range(2 * reach + 1):
        if first == reach:
            found.append(rows)
            continue
        begin = w.constant(f"from_{first}", [first])
        end = w.node("Add", width, begin)
        same = w.node("Equal", w.node("Slice", texts, begin, end, axis), "text_ids")
        moved = w.node("Slice", around, begin, end, axis)
        seen = w.node("Unsqueeze", same, w.constant("axis_2", [2]))
        found.append(w.node("Where", seen, moved, zero))
    return found


def convolution_weights(
    config: BertConfig, weights: Weights
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the kernel as a matrix (K * H, H), zeros between its groups, and the bias (H,)."""
    kernel, groups = (
        weights[f"{CONVOLUTION}.conv.weight"],
        DebertaBody.of(config.body).conv_groups,
    )  # (H, H / groups, K)
    width, inner, size = kernel.shape
    whole = np.zeros((size, width, width), np.float32)
    for group in range(groups):
        outputs = slice(group * (width // groups), (group + 1) * (width // groups))
        inputs = slice(group * inner, (group + 1) * inner)
        whole[:, inputs, outputs] = kernel[outputs].transpose(2, 1, 0)
    return whole.reshape(size * width, width), weights[f"{CONVOLUTION}.conv.bias"]
