"""The embedding tables of a graph as files of their own, so that graphs with equal tables can share them.

A fine-tuned adapter leaves the embeddings as they were, and the 8-bit graph keeps them in float32: the table of word
embeddings is half of a small model, and equal in every graph over the same base.
"""

import io

import numpy as np
import onnx
from onnx import helper
from onnx.external_data_helper import set_external_data

from bert.bundle import TABLE_SUFFIX

MIN_TABLE_BYTES = 2**12
"""Smaller tables stay in the graph."""


def separate_tables(model: onnx.ModelProto) -> dict[str, tuple[bytes, bytes]]:
    """Take a graph's embedding tables out of it as external data; return the content of their files by name, in two parts.

    A table is an initializer that a Gather reads from. Its file is named after it and has numpy's format; ONNX Runtime
    finds it beside the graph.
    """
    gathered = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    files = dict[str, tuple[bytes, bytes]]()
    for tensor in model.graph.initializer:
        if tensor.name not in gathered or len(raw := tensor.raw_data) < MIN_TABLE_BYTES:
            continue
        name, header = f"{tensor.name}{TABLE_SUFFIX}", io.BytesIO()
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        described = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(tensor.dims),
        }
        np.lib.format.write_array_header_1_0(header, described)
        set_external_data(tensor, name, offset=header.tell(), length=len(raw))
        tensor.ClearField(
            "raw_data"
        )  # a table may be two thirds of a model: none is copied once more than it must
        files[name] = header.getvalue(), raw
    return files
