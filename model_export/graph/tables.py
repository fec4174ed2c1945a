"""The embedding tables of a graph as files of their own, so that graphs with equal tables can share them.

A fine-tuned adapter leaves the embeddings as they were, and the 8-bit graph keeps them in float32: the table of word
embeddings is half of a small model, and equal in every graph over the same base.
"""

import io

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data

from bert.bundle import TABLE_SUFFIX

MIN_TABLE_BYTES = 2**12
"""Smaller tables stay in the graph."""


def separate_tables(model: onnx.ModelProto) -> dict[str, bytes]:
    """Take a graph's embedding tables out of it as external data; return the content of their files by name.

    A table is an initializer that a Gather reads from. Its file is named after it and has numpy's format; ONNX Runtime
    finds it beside the graph.
    """
    gathered = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    files = {}
    for tensor in model.graph.initializer:
        table = numpy_helper.to_array(tensor)
        if tensor.name not in gathered or table.nbytes < MIN_TABLE_BYTES:
            continue
        name = f"{tensor.name}{TABLE_SUFFIX}"
        stream = io.BytesIO()
        np.save(stream, table)
        files[name] = stream.getvalue()
        set_external_data(tensor, name, offset=len(files[name]) - table.nbytes, length=table.nbytes)
        tensor.ClearField("raw_data")
    return files
