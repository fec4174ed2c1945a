"""A graph in the making: nodes and constants, written one after the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
OPSET, MICROSOFT_OPSET, IR_VERSION = 21, 1, 10
SIGMOID_FACTORS = {"silu": 1.0, "quick_gelu": 1.702}
"""Activation x * sigmoid(a * x) → a."""

Dim = int | str


class GraphWriter:
    """Collects what `onnx.helper.make_graph` wants; every method returns the name of the tensor that it adds."""

    def __init__(self) -> None:
        """Start an empty graph."""
        self._nodes: list[onnx.NodeProto] = []
        self._written = 0  # in all graphs, so that no two nodes have one name
        # Constants are made in the model, into which no large one is copied: that would take twice its memory more.
        self._model = onnx.ModelProto()
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[Dim], kind: int = TensorProto.INT32) -> str:
        """Declare an input, by default int32."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, tensor: str, name: str, shape: Sequence[Dim]) -> None:
        """Declare a tensor as the float32 output `name`."""
        self._nodes.append(helper.make_node("Identity", [tensor], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def constant(self, name: str, value: NDArray[Any] | Sequence[int] | float) -> str:
        """Store a constant once under its name; numbers become int64 (shapes and axes) or float32."""
        array = np.asarray(value)
        if not isinstance(value, np.ndarray) and array.dtype == np.float64:
            array = array.astype(np.float32)
        kind, raw = helper.np_dtype_to_tensor_dtype(array.dtype), array.tobytes()
        if name in self._constants:
            kept = self._constants[name]
            same = (kept.data_type, tuple(kept.dims), kept.raw_data) == (kind, array.shape, raw)
            assert same, f"two constants are called {name}"
            return name
        tensor = self._constants[name] = self._model.graph.initializer.add()
        tensor.name, tensor.data_type, tensor.raw_data = name, kind, raw
        tensor.dims.extend(array.shape)
        return name

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, named after the operator."""
        return self.nodes(operator, *inputs, domain=domain, outputs=1, **attributes)[0]

    def nodes(
        self, operator: str, *inputs: str, domain: str = "", outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs. An empty input name leaves an optional input out."""
        name = f"{operator}_{self._written}"
        self._written += 1
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, name=name, domain=domain, **attributes))
        return names

    def unique(self, name: str) -> str:
        """Return a name that no other tensor has."""
        self._written += 1
        return f"{name}_{self._written}"

    def subgraph(
        self, write: Callable[[], Sequence[str]], inputs: Sequence[tuple[str, int, Sequence[Dim]]] = ()
    ) -> onnx.GraphProto:
        """Return what `write` writes as a graph of its own, for an operator with branches or a body; it returns outputs.

        It reads the tensors of the graph around it. `inputs` are those of its own: name, type and shape.
        """
        outer, self._nodes = self._nodes, []
        outputs = write()
        inner, self._nodes = self._nodes, outer
        declared = [helper.make_tensor_value_info(name, kind, list(shape)) for name, kind, shape in inputs]
        returned = [helper.make_empty_tensor_value_info(name) for name in outputs]
        return helper.make_graph(inner, f"graph_{self._written}", declared, returned)

    def choose(
        self, condition: str, then: Callable[[], Sequence[str]], otherwise: Callable[[], Sequence[str]]
    ) -> list[str]:
        """Add an If whose branches write the same number of outputs."""
        branch, other = self.subgraph(then), self.subgraph(otherwise)
        return self.nodes("If", condition, outputs=len(branch.output), then_branch=branch, else_branch=other)

    def activation(self, x: str, name: str) -> str:
        """Add the activation that a config names."""
        if name in ("relu", "tanh"):
            return self.node(name.capitalize(), x)
        if name in SIGMOID_FACTORS:
            return self.node("QuickGelu", x, domain=MICROSOFT, alpha=SIGMOID_FACTORS[name])
        return self.node("Gelu", x, approximate="tanh" if name == "gelu_new" else "none")

    def model(self, name: str) -> onnx.ModelProto:
        """Return the finished model, once."""
        model = self._model
        model.ir_version, model.producer_name, model.graph.name = IR_VERSION, "bert-export", name
        model.opset_import.extend(
            [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, MICROSOFT_OPSET)]
        )
        model.graph.node.extend(self._nodes)
        model.graph.input.extend(self._inputs)
        model.graph.output.extend(self._outputs)
        return model


def linear(w: GraphWriter, x: str, weights: Mapping[str, NDArray[np.float32]], name: str) -> str:
    """Write x W + b in float32, of a layer with or without a bias; (..., in) → (..., out)."""
    weight = w.constant(f"{name}.weight.T", weights[f"{name}.weight"].T)
    bias = [w.constant(f"{name}.bias", weights[f"{name}.bias"])] if f"{name}.bias" in weights else []
    return w.node("Gemm", x, weight, *bias)


def text_places(w: GraphWriter) -> str:
    """Write numbers from 1 on for the places of the longest text, (longest,)."""
    # Not by Shape and Range: CUDA leaves what follows a shape to the CPU, which the session does not allow.
    offsets = w.node("Cast", "token_offset", to=TensorProto.INT64)  # (N, longest)
    row = w.node("Gather", offsets, w.constant("index_0", 0), axis=0)
    none = w.node("Sub", row, row)
    ones = w.node("Add", none, w.constant("index_1", 1))
    return w.node("CumSum", ones, w.constant("index_0", 0))
