"""Small graphs that compute the same with other operators, for `benchmarks.engine.operators`.

T tokens in rows of S, H wide, A heads, I the feed-forward layer's width. The first form of each part is the one that is
exported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from model_export.graph.graph_builder import MICROSOFT, GraphWriter

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class GraphSize:
    """Sizes of the graphs."""

    tokens: int
    row: int
    width: int
    heads: int
    inner: int


@dataclass(frozen=True, slots=True)
class OpVariant:
    """One graph; `note` says where it is not quite equal."""

    name: str
    model: onnx.ModelProto
    note: str = ""


class _Graph(GraphWriter):
    """A writer whose inputs may be float32 too."""

    def __init__(self, shape: GraphSize) -> None:
        super().__init__()
        self.shape, self._rng = shape, np.random.default_rng(0)

    def floats(self, name: str, *dims: int) -> str:
        """Declare a float32 input."""
        self._inputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(dims)))
        return name

    def weight(self, name: str, *dims: int) -> str:
        """Store random float32."""
        return self.constant(name, self._rng.normal(0, 0.05, dims).astype(np.float32))

    def small(self, name: str, *dims: int) -> str:
        """Store random 8-bit weights."""
        return self.constant(name, self._rng.integers(-127, 128, dims).astype(np.int8))

    def done(self, tensor: str) -> onnx.ModelProto:
        """Return the model with this output."""
        self.output(tensor, "y", [])
        return self.model("form")


def parts(shape: GraphSize) -> dict[str, list[OpVariant]]:
    """Return, for each part of the encoder, the forms that it may have."""
    return {
        "linear layer, H to I": linear(shape),
        "linear layer in 8 bits, H to I": linear_8_bits(shape),
        "activation": activation(shape),
        "sum and LayerNorm": add_norm(shape),
        "attention with its projections": attention(shape),
        "embeddings": embeddings(shape),
    }


def linear(shape: GraphSize) -> list[OpVariant]:
    """x W + b in float32."""

    def form(write: Callable[[_Graph, str, str, str], str]) -> onnx.ModelProto:
        g = _Graph(shape)
        x = g.floats("x", shape.tokens, shape.width)
        return g.done(write(g, x, g.weight("w", shape.width, shape.inner), g.weight("b", shape.inner)))

    return [
        OpVariant("Gemm", form(lambda g, x, w, b: g.node("Gemm", x, w, b))),
        OpVariant("MatMul, Add", form(lambda g, x, w, b: g.node("Add", g.node("MatMul", x, w), b))),
    ]


def linear_8_bits(shape: GraphSize) -> list[OpVariant]:
    """x W + b in 8 bits, from float32 to float32."""
    width, inner = shape.width, shape.inner

    def started() -> tuple[_Graph, str]:
        g = _Graph(shape)
        return g, g.floats("x", shape.tokens, width)

    def fixed(operator: str) -> onnx.ModelProto:
        g, x = started()
        scale, middle = g.constant("scale", 0.02), g.constant("middle", np.array(128, np.uint8))
        q = g.node("QuantizeLinear", x, scale, middle)
        w, scales, b = g.small("w", width, inner), g.weight("scales", inner), g.weight("b", inner)
        if operator == "MatMulIntegerToFloat":
            return g.done(g.node(operator, q, w, scale, scales, middle, "", b, domain=MICROSOFT))
        if operator == "QLinearMatMul":
            zeros = g.constant("zeros", np.zeros(inner, np.int8))
            positive = g.constant("positive", np.full(inner, 0.01, np.float32))
            y = g.node(operator, q, scale, middle, w, positive, zeros, scale, middle)
            return g.done(g.node("Add", g.node("DequantizeLinear", y, scale, middle), b))
        total = g.node("Cast", g.node("MatMulInteger", q, w, middle), to=onnx.TensorProto.FLOAT)
        return g.done(g.node("Add", g.node("Mul", g.node("Mul", total, scale), scales), b))

    def dynamic() -> onnx.ModelProto:
        g, x = started()
        w, scales, b = g.small("w", width, inner), g.weight("scales", inner), g.weight("b", inner)
        return g.done(g.node("DynamicQuantizeMatMul", x, w, scales, "", b, domain=MICROSOFT))

    def blocks() -> onnx.ModelProto:
        g, x = started()
        size = 32
        w = g.constant("w", np.ones((inner, width // size, size), np.uint8))
        scales, b = g.weight("scales", inner, width // size), g.weight("b", inner)
        about = {"K": width, "N": inner, "bits": 8, "block_size": size, "accuracy_level": 4}
        return g.done(g.node("MatMulNBits", x, w, scales, "", "", b, domain=MICROSOFT, **about))

    return [
        OpVariant("QuantizeLinear, MatMulIntegerToFloat", fixed("MatMulIntegerToFloat")),
        OpVariant("DynamicQuantizeMatMul", dynamic(), "its scale comes from the batch"),
        OpVariant("QuantizeLinear, MatMulInteger, Cast, Mul, Add", fixed("MatMulInteger")),
        OpVariant(
            "QuantizeLinear, QLinearMatMul, DequantizeLinear, Add",
            fixed("QLinearMatMul"),
            "rounds its output too",
        ),
        OpVariant("MatMulNBits, blocks of 32", blocks(), "its scales are for each token"),
        *[OpVariant(f"float32: {form.name}", form.model, "no 8 bits") for form in linear(shape)[:1]],
    ]


def activation(shape: GraphSize) -> list[OpVariant]:
    """A linear layer and GELU, as its bias may be in either."""

    def form(biased: bool, operator: str, domain: str = "") -> onnx.ModelProto:
        g = _Graph(shape)
        x = g.floats("x", shape.tokens, shape.width)
        w, b = g.weight("w", shape.width, shape.inner), g.weight("b", shape.inner)
        if biased:
            return g.done(g.node(operator, g.node("Gemm", x, w, b), domain=domain))
        return g.done(g.node(operator, g.node("MatMul", x, w), b, domain=domain))

    return [
        OpVariant("Gemm, Gelu", form(True, "Gelu")),
        OpVariant("Gemm, com.microsoft.Gelu", form(True, "Gelu", MICROSOFT)),
        OpVariant("MatMul, BiasGelu", form(False, "BiasGelu", MICROSOFT)),
        OpVariant("MatMul, FastGelu", form(False, "FastGelu", MICROSOFT), "tanh in place of erf"),
    ]


def add_norm(shape: GraphSize) -> list[OpVariant]:
    """LayerNorm(x + residual)."""

    def form(fused: bool) -> onnx.ModelProto:
        g = _Graph(shape)
        x, residual = (g.floats(name, shape.tokens, shape.width) for name in ("x", "residual"))
        parameters = g.weight("scale", shape.width), g.weight("shift", shape.width)
        if fused:
            return g.done(g.node("SkipLayerNormalization", x, residual, *parameters, domain=MICROSOFT))
        return g.done(g.node("LayerNormalization", g.node("Add", x, residual), *parameters, axis=-1))

    return [
        OpVariant("Add, LayerNormalization", form(False)),
        OpVariant("SkipLayerNormalization", form(True)),
    ]


def attention(shape: GraphSize) -> list[OpVariant]:
    """Self-attention of rows, each token to its row, with the projections that it reads."""
    rows, width, heads = shape.tokens // shape.row, shape.width, shape.heads
    size = width // heads

    def started() -> tuple[_Graph, str, str]:
        g = _Graph(shape)
        x = g.floats("x", rows, shape.row, width)
        return g, x, g.floats("bias", rows, 1, shape.row, shape.row)

    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.05, (3, width, width)).astype(np.float32)
    biases = rng.normal(0, 0.05, (3, width)).astype(np.float32)

    def fused() -> onnx.ModelProto:
        g, x, bias = started()
        w, b = g.constant("w", np.concatenate(weights, axis=1)), g.constant("b", np.concatenate(biases))
        return g.done(g.node("Attention", x, w, b, "", "", bias, domain=MICROSOFT, num_heads=heads))

    def projections(g: _Graph, x: str) -> list[str]:
        products = [g.node("MatMul", x, g.constant(f"w{i}", weights[i])) for i in range(3)]
        return [g.node("Add", product, g.constant(f"b{i}", biases[i])) for i, product in enumerate(products)]

    def separate() -> onnx.ModelProto:
        g, x, bias = started()
        three = projections(g, x)
        return g.done(g.node("MultiHeadAttention", *three, "", "", bias, domain=MICROSOFT, num_heads=heads))

    def plain() -> onnx.ModelProto:
        g, x, bias = started()
        split = g.constant("split", [rows, shape.row, heads, size])
        q, k, v = (g.node("Reshape", part, split) for part in projections(g, x))
        q, v = (g.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        k = g.node("Transpose", k, perm=[0, 2, 3, 1])
        scaled = g.node("Mul", g.node("MatMul", q, k), g.constant("scale", size**-0.5))
        seen = g.node("MatMul", g.node("Softmax", g.node("Add", scaled, bias), axis=-1), v)
        together = g.constant("together", [rows, shape.row, width])
        return g.done(g.node("Reshape", g.node("Transpose", seen, perm=[0, 2, 1, 3]), together))

    return [
        OpVariant("Attention", fused(), "in float32 graphs"),
        OpVariant("MatMul, Add, MultiHeadAttention", separate(), "in 8-bit graphs, with other products"),
        OpVariant("MatMul, Add, Transpose, MatMul, Softmax, MatMul", plain()),
    ]


def embeddings(shape: GraphSize) -> list[OpVariant]:
    """The sum of three embeddings and its LayerNorm."""
    rows, width, pieces = shape.tokens // shape.row, shape.width, 30_522

    def form(fused: bool) -> onnx.ModelProto:
        g = _Graph(shape)
        ids = [g.input(name, [rows, shape.row]) for name in ("ids", "segments", "places")]
        tables = (
            g.weight("words", pieces, width),
            g.weight("positions", 512, width),
            g.weight("types", 2, width),
        )
        norm = g.weight("scale", width), g.weight("shift", width)
        if fused:
            outputs = g.nodes(
                "EmbedLayerNormalization", *ids[:2], *tables, *norm, "", ids[2], outputs=2, domain=MICROSOFT
            )
            return g.done(outputs[0])
        words, segments, places = ids
        order = (tables[0], words), (tables[1], places), (tables[2], segments)
        first, second, third = (g.node("Gather", table, which) for table, which in order)
        total = g.node("Add", g.node("Add", first, second), third)
        return g.done(g.node("LayerNormalization", total, *norm, axis=-1))

    return [
        OpVariant("Gather, Add, LayerNormalization", form(False)),
        OpVariant("EmbedLayerNormalization", form(True)),
    ]


def inputs_of(model: onnx.ModelProto) -> Arrays:
    """Return random values for a model's inputs; integers are 0 or 1, which every table has."""
    rng, found = np.random.default_rng(1), Arrays()
    for tensor in model.graph.input:
        dims = [dim.dim_value for dim in tensor.type.tensor_type.shape.dim]
        is_float = tensor.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        found[tensor.name] = (
            rng.normal(size=dims).astype(np.float32)
            if is_float
            else rng.integers(0, 2, dims).astype(np.int32)
        )
    return found
