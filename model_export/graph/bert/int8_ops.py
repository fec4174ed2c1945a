"""The encoder's products in 8 bits on the CPU, with answers that do not depend on the batch. T tokens, H width.

No scale comes from the batch:
- A LayerNorm's output always has much the same range, so one scale, fixed at export, serves every text. Queries, keys and
  values read it, and the feed-forward layer's first half. Their outputs are the widest, where a scale for each token
  would cost most.
- Attention's sums and the activation's output vary from token to token. Each token's vector has a scale of its own.
- Weights have one scale for each output.

Three things make the error small, the first exact in real arithmetic:
- Outlier features are divided by factors that the weights take back (SmoothQuant, Xiao et al. 2022, 2211.10438). Where
  the scale is fixed, each feature is first shifted so that its range is symmetric, and the bias takes the shift back.
- The activation's output is almost never below 0, so 0 is among the lowest of its 256 levels.
- Weights are rounded with regard to the inputs that they are multiplied with (`rounding.py`).

Two passes over tensors are saved. The values' weights contain the smoothing factors of attention's sums. A LayerNorm's
shift contains the bias of the linear layer whose residual is the LayerNorm's output. So does the bias of the embeddings'
projection, where there is one: it takes the place of the first LayerNorm.

Layers that share their weights share them in 8 bits too, with one smoothing and one scale that fit all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bert.bodies.body import EMBEDDINGS_NORM
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.calibration import Calibration
from model_export.graph.graph_builder import MICROSOFT, GraphWriter
from model_export.graph.rounding import inverse_root, round_weight
from model_export.reference import Floats

LOWEST = {"gelu": -0.17, "gelu_new": -0.1701, "relu": 0.0, "silu": -0.2785, "quick_gelu": -0.1637}
"""A little below each activation's minimum."""
SMOOTHING = 0.5  # among the best of 0.3 ... 1.0 on real text (docs/export.md), and the paper's value
FIXED_SMOOTHING = (
    0.8  # the best of 0.5 ... 1.0 for fixed scales, which must cover every feature of every token
)
MIDDLE = 128  # the level of 0 in unsigned bytes
ZERO = 24  # the level of 0 for an activation that goes a little below it; the best of 8 ... 48 on real text
SMALLEST = 1e-10  # smallest scale, so that a vector of zeros is not divided by zero


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """A layer (x W + b) * output_factors: weight (in, out), bias (out,), and a sample of its inputs x (M, in)."""

    name: str
    weight: Floats
    bias: Floats
    inputs: Floats
    output_factors: Floats | float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _FixedRange:
    """What makes 8 bits of vectors x: (x - shift) / factors, with one scale for all tokens; shift and factors are (in,)."""

    shift: Floats
    factors: Floats
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class _FixedInput:
    """The tensor (x - shift) / factors in 8 bits, (T, in)."""

    quantised: str
    scale: str
    range: _FixedRange


class Int8Ops(CpuOps):
    """Writes the encoder's linear layers, and those of a large head, as 8-bit products; attention stays float32."""

    smoothing, fixed_smoothing = SMOOTHING, FIXED_SMOOTHING
    is_gated = False
    """The feed-forward layer's first half is a product of both signs, already smoothed."""

    def __init__(
        self, writer: GraphWriter, config: BertConfig, weights: Weights, calibration: Calibration
    ) -> None:
        """Write into `writer`; `calibration` holds inputs of the checkpoint's linear layers on real texts."""
        super().__init__(writer, config, weights)
        self._calibration = calibration
        self._linears: dict[str, _Linear] = {}
        self._ranges: dict[str, _FixedRange] = {}
        self._weights: dict[str, tuple[NDArray[np.int8], Floats]] = {}
        self._residual_denses = _residual_denses(config)

    def project_embeddings(self, x: str, name: str) -> str:
        """Write the linear layer after the embeddings, in float32; (T, e) → (T, H)."""
        weight = self.w.constant(f"{name}.weight.T", self.weights[f"{name}.weight"].T)
        bias = self.weights[f"{name}.bias"] + self.weights[f"{next(self._residual_denses)}.bias"]
        return self.w.node("Gemm", x, weight, self.w.constant(f"{name}.bias.residual", bias))

    def attention(self, x: str, name: str) -> str:
        """Write self-attention, its three projections reading one quantised input; (T, H) → (T, H), already smoothed."""
        linears, fixed = self._attention_input(x, name)
        rows = self._in_rows(fixed.quantised)
        query, key, value = (self._fixed_product(rows, linear, fixed) for linear in linears)
        return self._attended_rows(query, key, value, name)

    def attention_at_heads(self, x: str, name: str) -> str:
        """Write self-attention whose queries are each row's head positions; (T, H) → (P, H), already smoothed."""
        (query, key, value), fixed = self._attention_input(x, name)
        heads, rows = self.w.node("Gather", fixed.quantised, "row_heads"), self._in_rows(fixed.quantised)
        return self._attended_heads(
            self._fixed_product(heads, query, fixed),
            self._fixed_product(rows, key, fixed),
            self._fixed_product(rows, value, fixed),
            name,
        )

    def _attention_input(self, x: str, name: str) -> tuple[list[_Linear], _FixedInput]:
        """Write the quantised input of queries, keys and values; return their layers and that input."""
        query, key, value = (self._from_checkpoint(f"{name}.{part}") for part in ("query", "key", "value"))
        output = self._from_checkpoint(f"{name.removesuffix('.self')}.output.dense")
        value = replace(value, output_factors=np.float32(1) / self._factors(output))
        return [query, key, value], self._fixed_input(x, [query, key, value], output)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half; (T, H) → (T, I)."""
        output = self._from_checkpoint(f"{name.removesuffix('.intermediate.dense')}.output.dense")
        linear = self._from_checkpoint(name)
        fixed = self._fixed_input(x, [linear], output)
        return self.activation(self._fixed_product(fixed.quantised, linear, fixed))

    def head_linear(
        self, x: str, name: str, weight: Floats, bias: Floats | None = None, *, is_positive: bool = False
    ) -> str:
        """Write x W + b of a head in 8 bits, with a scale for each row; (P, in) → (P, out).

        Its weights are rounded to the nearest level: few layers follow one another, so that this is near enough.
        """
        if is_positive:
            largest = self.w.node("ReduceMax", x, self.w.constant("last_axis", [-1]), keepdims=0)
            quantised, scale, level = self._quantised(x, self._scale(largest, 255, SMALLEST), 0)
        else:
            quantised, scale, level = self._quantised_signed(x)
        product = self._product(quantised, scale, level, _plain(name, weight))
        return product if bias is None else self.w.node("Add", product, self.w.constant(f"{name}.bias", bias))

    def vocabulary_product(self, x: str) -> Callable[[str, Floats], str]:
        """Return what writes x W (T, C) of x (T, e) and some pieces' vectors in 8 bits, with a scale for each token."""
        quantised = self._quantised_signed(x)
        return lambda name, weight: self._product(*quantised, _plain(name, weight))

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + residual), where the residual already holds the bias b; (T, in) → (T, H)."""
        linear = self._from_checkpoint(dense)
        if dense.endswith(".attention.output.dense") or self.is_gated:
            factors = self._factors(linear)
            linear = replace(linear, weight=linear.weight * factors[:, None], inputs=linear.inputs / factors)
            quantised, scale, zero = self._quantised_signed(x)
        else:
            quantised, scale, zero = self._quantised_activation(x)
        return self.add_norm(self._product(quantised, scale, zero, linear), residual, norm)

    def norm_parameters(self, name: str) -> list[str]:
        """Write a norm's scale and its shift, to which the bias of the next of `_residual_denses` is added."""
        if name == EMBEDDINGS_NORM and self.config.projects_embeddings:
            return super().norm_parameters(name)
        dense = next(self._residual_denses, None)
        if dense is None:
            return super().norm_parameters(name)
        shift = self.weights[f"{name}.bias"] + self.weights.get(f"{dense}.bias", np.float32(0))
        # A norm of several layers may be followed by different ones.
        kept = f"{name}.bias.residual.{dense}" if self.config.shares_layers else f"{name}.bias.residual"
        return [self.tensor(f"{name}.weight"), self.w.constant(kept, shift)]

    def _fixed_input(
        self, x: str, linears: Sequence[_Linear], residual: _Linear | None = None
    ) -> _FixedInput:
        """Write x, a LayerNorm's output, in 8 bits for the layers that read it; (T, in) → (T, in).

        One scale from calibration serves all tokens, so the product's operator applies it and adds the bias. x also holds
        the bias of `residual`, where one is given: it is subtracted.
        """
        name = linears[0].name
        if name not in self._ranges:
            if not self.config.shares_layers:
                self._ranges.clear()
                self._weights.clear()
            self._ranges[name] = self._fixed_range(linears)
        found = self._ranges[name]
        shift = found.shift if residual is None else found.shift + residual.bias
        shifted = self.w.node("Sub", x, self.w.constant(f"{name}.shift", shift))
        smooth = self.w.node("Mul", shifted, self.w.constant(f"{name}.smoothing", 1 / found.factors))
        scale = self.w.constant(f"{name}.scale", found.scale)
        quantised = self.w.node("QuantizeLinear", smooth, scale, self._level(MIDDLE))
        return _FixedInput(quantised, scale, found)

    def _fixed_range(self, linears: Sequence[_Linear]) -> _FixedRange:
        """Return the range of what the layers, which read the same, were seen to read; and round their weights."""
        read = linears[0].inputs
        weights = np.concatenate([linear.weight for linear in linears], axis=1)
        # With each feature's range symmetric, one scale wastes no level. The biases take the shift back.
        shift = (read.max(axis=0) + read.min(axis=0)) / 2
        factors = _smoothing_factors(weights, read - shift, self.fixed_smoothing)
        inputs = (read - shift) / factors
        # No margin for outliers of other texts: clipping those few costs less than coarser steps for all.
        scale = max(float(np.abs(inputs).max()) / (MIDDLE - 1), SMALLEST)
        rounded, scales = round_weight(weights * factors[:, None], inverse_root(inputs))
        ends = np.cumsum([linear.weight.shape[1] for linear in linears])[:-1]
        parts = zip(np.split(rounded, ends, axis=1), np.split(scales, ends), strict=True)
        self._weights |= {linear.name: part for linear, part in zip(linears, parts, strict=True)}
        return _FixedRange(shift, factors, scale)

    def _fixed_product(
        self, quantised: str, linear: _Linear, fixed: _FixedInput, outputs: slice = slice(None)
    ) -> str:
        """Write x W + b in 8 bits for all of a quantised x, or for positions gathered from it; (..., in) → (..., out).

        Of a joined layer that may be some of its `outputs`.
        """
        weight, weight_scale = self._weights[linear.name]
        bias = linear.bias + fixed.range.shift @ linear.weight
        name = linear.name if outputs == slice(None) else f"{linear.name}.{outputs.start}_{outputs.stop}"
        return self.w.node(
            "MatMulIntegerToFloat",
            quantised,
            self.w.constant(f"{name}.weight.int8", weight[:, outputs]),
            fixed.scale,
            self.w.constant(f"{name}.weight.scale", (weight_scale * linear.output_factors)[outputs]),
            self._level(MIDDLE),
            "",
            self.w.constant(f"{name}.bias.int8", (bias * linear.output_factors)[outputs]),
            domain=MICROSOFT,
        )

    def _product(self, quantised: str, scale: str, zero: str, linear: _Linear) -> str:
        """Write x W in 8 bits, with a scale for each token (T,); (T, in) → (T, out)."""
        if linear.name not in self._weights:
            self._weights[linear.name] = round_weight(linear.weight, inverse_root(linear.inputs))
        weight, weight_scale = self._weights[linear.name]
        product = self.w.node(
            "MatMulIntegerToFloat",
            quantised,
            self.w.constant(f"{linear.name}.weight.int8", weight),
            self.w.constant("one_float", 1.0),
            self.w.constant(f"{linear.name}.weight.scale", weight_scale),
            zero,
            domain=MICROSOFT,
        )
        return self.w.node("Mul", product, self.w.node("Unsqueeze", scale, self.w.constant("axis_1", [1])))

    def _quantised_activation(self, x: str) -> tuple[str, str, str]:
        """Write an activation's output in 256 levels, ZERO of them below 0; return it, its scales (T,) and 0's level."""
        largest = self.w.node("ReduceMax", x, self.w.constant("last_axis", [-1]), keepdims=0)
        below = ZERO if LOWEST[self.config.hidden_act] else 0
        smallest = max(-LOWEST[self.config.hidden_act] / below, SMALLEST) if below else SMALLEST
        scale = self._scale(largest, levels=255 - below, smallest=smallest)
        return self._quantised(x, scale, below)

    def _quantised_signed(self, x: str) -> tuple[str, str, str]:
        """Write vectors of both signs as 128 ± 127; return them, their scales (T,) and the level of 0."""
        largest = self.w.node(
            "ReduceMax", self.w.node("Abs", x), self.w.constant("last_axis", [-1]), keepdims=0
        )
        return self._quantised(x, self._scale(largest, levels=127, smallest=SMALLEST), MIDDLE)

    def _quantised(self, x: str, scale: str, zero: int) -> tuple[str, str, str]:
        zeros = self.w.constant(f"zeros_{zero}", np.array([zero], np.uint8))
        each = self.w.node("Expand", zeros, self.w.node("Shape", scale))
        quantised = self.w.node("QuantizeLinear", x, scale, each, axis=0)
        return quantised, scale, self._level(zero)

    def _factors(self, linear: _Linear) -> Floats:
        return _smoothing_factors(linear.weight, linear.inputs, self.smoothing)

    def _scale(self, largest: str, levels: int, smallest: float) -> str:
        scale = self.w.node("Mul", largest, self.w.constant(f"per_level_{levels}", 1 / levels))
        return self.w.node("Max", scale, self.w.constant(f"smallest_for_{levels}", smallest))

    def _from_checkpoint(self, name: str) -> _Linear:
        if name in self._linears:
            return self._linears[name]
        weight = self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias", np.zeros(weight.shape[1], np.float32))
        linear = _Linear(name, weight, bias, self._calibration.inputs(name))
        if self.config.shares_layers:  # the inputs of all layers of a large BERT would fill the memory
            self._linears[name] = linear
        return linear

    def _level(self, level: int) -> str:
        return self.w.constant(f"level_{level}", np.array(level, np.uint8))


def _plain(name: str, weight: Floats) -> _Linear:
    """Return a layer without a bias whose weights are rounded to the nearest level."""
    return _Linear(name, weight, np.zeros(0, np.float32), np.eye(len(weight), dtype=np.float32))


def _residual_denses(config: BertConfig) -> Iterator[str]:
    """Yield, in the order of the graph, the linear layers to whose output a residual is added."""
    for layer in config.layer_order:
        yield f"bert.encoder.layer.{layer}.attention.output.dense"
        yield f"bert.encoder.layer.{layer}.output.dense"


def _smoothing_factors(weight: Floats, inputs: Floats, smoothing: float) -> Floats:
    """Return what each feature is divided by, (in,); in float64 until the end, see `calibrate`."""
    of_inputs = np.maximum(np.abs(inputs).max(axis=0), 1e-5).astype(np.float64)
    of_weights = np.maximum(np.abs(weight).max(axis=1), 1e-5).astype(np.float64)
    factors: Floats = (of_inputs**smoothing / of_weights ** (1 - smoothing)).astype(np.float32)
    return factors
