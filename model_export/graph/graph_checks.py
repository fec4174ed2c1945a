"""Checks of a graph: its form, its fused operators, its output."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime as ort

from bert.errors import ExportError
from model_export.graph.graph_builder import MICROSOFT

ATTENTION = frozenset({"Attention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention"})


def fused_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Count the nodes of the domain com.microsoft, "com.microsoft.Name" → how many.

    By domain: since opset 23 there is an `Attention` in ONNX itself, which is another operator.
    """
    nodes = (node for top in model.graph.node for node in _within(top))
    names = (f"{node.domain}.{node.op_type}" for node in nodes if node.domain == MICROSOFT)
    return dict(sorted(Counter(names).items()))


def check_form(graph: Path | onnx.ModelProto) -> None:
    """Raise ExportError if a graph, written or in memory, is malformed."""
    try:
        onnx.checker.check_model(str(graph) if isinstance(graph, Path) else graph)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the graph is malformed: {error}") from None


def check_attention(model: onnx.ModelProto, layers: int) -> None:
    """Raise ExportError if attention is not fused; `layers` counts layers as they are applied, not their weights."""
    # Branches for short and for long rows are one attention.
    attention = sum(any(map(_is_attention, _within(node))) for node in model.graph.node)
    if attention != layers:
        raise ExportError(
            f"{attention} of {layers} layers have fused attention; this is a bug of bert-export"
        )


def _within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and all nodes of its branches or its body."""
    yield node
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _within(inner)


def _is_attention(node: onnx.NodeProto) -> bool:
    return node.domain == MICROSOFT and node.op_type in ATTENTION


def output_of(model: onnx.ModelProto) -> tuple[str, int]:
    """Return the name of the graph's one output, and the last dimension of its shape."""
    (output,) = model.graph.output
    return output.name, output.type.tensor_type.shape.dim[-1].dim_value


def check_types(model: onnx.ModelProto) -> None:
    """Let ONNX Runtime infer every type and shape of a graph that this machine has no kernels for.

    Opening it resolves the whole graph before it looks for kernels, so that not to find one is the good end.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the package's exceptions are not public
        if type(error).__name__ != "NotImplemented":
            raise ExportError(f"ONNX Runtime does not accept the graph: {error}") from None
