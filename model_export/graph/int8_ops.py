"""The encoder's products in 8 bits on the CPU, with answers that do not depend on the batch. T tokens.

No scale comes from the batch. What a LayerNorm gave has always much the same range, so a scale that is fixed at export
serves every text (queries, keys and values; the feed-forward layer's first half: the widest outputs, where a scale for
each token costs most). Attention's sums and the activation's output vary from token to token: each of these vectors is
quantised by a scale of its own, taken from that vector alone. Weights have one scale for each output. Three things make
the error small at little cost, the first two exact in real arithmetic:
- outlier features are divided by factors that the weights take back (SmoothQuant, Xiao et al. 2022, 2211.10438); where
  the scale is fixed, each feature's range is moved to its middle first, and the bias takes it back;
- the activation's output is shifted up by its lowest value, so that all 256 levels are used; the bias takes it back;
- weights are rounded with regard to what they are multiplied with (`rounding.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from model_export.graph.calibration import Calibration
from model_export.graph.cpu_ops import CpuOps
from model_export.graph.graph_builder import MICROSOFT, GraphWriter
from model_export.graph.rounding import round_weight
from model_export.reference import Floats

LOWEST = {"gelu": -0.17, "gelu_new": -0.1701, "relu": 0.0}
"""A little below each activation's minimum."""
SMOOTHING = 0.5  # of 0.3 ... 1.0 among the best on real text (docs/export.md), and the paper's own
FIXED_SMOOTHING = (
    0.8  # of 0.5 ... 1.0 the best for fixed scales, which must hold every feature of every token
)
MIDDLE = 128  # what 0 becomes in unsigned bytes
SMALLEST = 1e-10  # a vector of zeros is not divided by zero


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """x W + b: weight (in, out), bias (out,), some of the vectors x (M, in)."""

    name: str
    weight: Floats
    bias: Floats
    inputs: Floats


class Int8Ops(CpuOps):
    """Writes 8-bit products in place of the encoder's linear layers; heads and attention stay float32."""

    smoothing, fixed_smoothing = SMOOTHING, FIXED_SMOOTHING

    def __init__(
        self, writer: GraphWriter, config: BertConfig, weights: Weights, calibration: Calibration
    ) -> None:
        """`calibration` holds what the checkpoint's linear layers read on real texts."""
        super().__init__(writer, config, weights)
        self._calibration = calibration
        self._activations: set[str] = set()

    def attention(self, x: str, name: str) -> str:
        """Write self-attention, its three projections of one quantised input; (T, H) → (T, H)."""
        parts = [self._from_checkpoint(f"{name}.{part}") for part in ("query", "key", "value")]
        attended = self.w.node(
            "MultiHeadAttention",
            *self._fixed_products(x, parts, in_rows=True),
            "",
            "",
            self._attention_bias,
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return self.as_tokens(attended)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half; (T, H) → (T, I)."""
        (wide,) = self._fixed_products(x, [self._from_checkpoint(name)])
        activated = self.activation(wide)
        self._activations.add(activated)
        return activated

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + b + residual); (T, in) → (T, H)."""
        return self._add_norm(self._product(x, self._from_checkpoint(dense)), residual, norm)

    def _fixed_products(self, x: str, linears: Sequence[_Linear], *, in_rows: bool = False) -> list[str]:
        """Write x W + b in 8 bits for layers that read the same x, a LayerNorm's output; each (T, in) → (T, out).

        One scale that calibration found serves all tokens, so that it, and the bias, go into the product.
        """
        name, read = linears[0].name, linears[0].inputs
        weights = np.concatenate([linear.weight for linear in linears], axis=1)
        # Each feature's range is made symmetric: then one scale wastes no level, and the biases take the shift back.
        shift = (read.max(axis=0) + read.min(axis=0)) / 2
        factors = _smoothing_factors(weights, read - shift, self.fixed_smoothing)
        inputs = (read - shift) / factors
        # No margin for outliers of other texts: to cut off those few costs less than coarser steps for all.
        scale = max(float(np.abs(inputs).max()) / (MIDDLE - 1), SMALLEST)
        shifted = self.w.node("Sub", x, self.w.constant(f"{name}.shift", shift))
        smooth = self.w.node("Mul", shifted, self.w.constant(f"{name}.smoothing", 1 / factors))
        fixed, middle = self.w.constant(f"{name}.scale", scale), self._middle()
        quantised = self.w.node("QuantizeLinear", smooth, fixed, middle)
        if in_rows:
            quantised = self.w.node("Reshape", quantised, self._row_shape)
        products = []
        for linear in linears:
            smoothed = _Linear(linear.name, linear.weight * factors[:, None], linear.bias, inputs)
            weight, weight_scale = self._rounded(smoothed)
            product = self.w.node(
                "MatMulIntegerToFloat",
                quantised,
                self.w.constant(f"{linear.name}.weight.int8", weight),
                fixed,
                self.w.constant(f"{linear.name}.weight.scale", weight_scale),
                middle,
                "",
                self.w.constant(f"{linear.name}.bias.int8", linear.bias + shift @ linear.weight),
                domain=MICROSOFT,
            )
            products.append(product)
        return products

    def _product(self, x: str, linear: _Linear) -> str:
        """Write x W + b in 8 bits, a scale for each token; (T, in) → (T, out)."""
        if x in self._activations:
            quantised, scale, linear = self._quantised_activation(x, linear)
            zero = self.w.constant("zero_0", np.array(0, np.uint8))
        else:
            quantised, scale, linear = self._quantised_signed(x, linear)
            zero = self._middle()
        weight, weight_scale = self._rounded(linear)
        product = self.w.node(
            "MatMulIntegerToFloat",
            quantised,
            self.w.constant(f"{linear.name}.weight.int8", weight),
            self.w.constant("one_float", 1.0),
            self.w.constant(f"{linear.name}.weight.scale", weight_scale),
            zero,
            domain=MICROSOFT,
        )
        down = self.w.node("Unsqueeze", scale, self.w.constant("axis_1", [1]))
        scaled = self.w.node("Mul", product, down)
        return self.w.node("Add", scaled, self.w.constant(f"{linear.name}.bias.int8", linear.bias))

    def _quantised_activation(self, x: str, linear: _Linear) -> tuple[str, str, _Linear]:
        """Write GELU's output as 0 ... 255; returns it, its scales (T,), and the layer that undoes the shift."""
        lowest = np.float32(LOWEST[self.config.hidden_act])
        bias = linear.bias + lowest * linear.weight.sum(axis=0)
        linear = _Linear(linear.name, linear.weight, bias, linear.inputs - lowest)
        shifted = self.w.node("Add", x, self.w.constant("activation_shift", float(-lowest))) if lowest else x
        smooth, linear = self._smoothed(shifted, linear)
        largest = self.w.node("ReduceMax", smooth, self.w.constant("last_axis", [-1]), keepdims=0)
        scale = self._scale(largest, levels=255)
        return self.w.node("QuantizeLinear", smooth, scale, axis=0), scale, linear

    def _quantised_signed(self, x: str, linear: _Linear) -> tuple[str, str, _Linear]:
        """Write a vector of both signs as 128 ± 127; returns it, its scales (T,), and the layer that it is for."""
        smooth, linear = self._smoothed(x, linear)
        axis = self.w.constant("last_axis", [-1])
        largest = self.w.node("ReduceMax", self.w.node("Abs", smooth), axis, keepdims=0)
        scale = self._scale(largest, levels=127)
        middle = self.w.constant("middles", np.array([MIDDLE], np.uint8))
        zeros = self.w.node("Expand", middle, self.w.node("Shape", scale))
        return self.w.node("QuantizeLinear", smooth, scale, zeros, axis=0), scale, linear

    def _rounded(self, linear: _Linear) -> tuple[NDArray[np.int8], Floats]:
        """Return the weight in 8 bits and a scale for each output (out,)."""
        return round_weight(linear.weight, linear.inputs)

    def _smoothed(self, x: str, linear: _Linear) -> tuple[str, _Linear]:
        """Write x with its outlier features divided down; returns it, and the layer that multiplies them back."""
        factors = _smoothing_factors(linear.weight, linear.inputs, self.smoothing)
        smooth = self.w.node("Mul", x, self.w.constant(f"{linear.name}.smoothing", 1 / factors))
        return smooth, _Linear(
            linear.name, linear.weight * factors[:, None], linear.bias, linear.inputs / factors
        )

    def _scale(self, largest: str, levels: int) -> str:
        scale = self.w.node("Mul", largest, self.w.constant(f"per_level_{levels}", 1 / levels))
        return self.w.node("Max", scale, self.w.constant("smallest", SMALLEST))

    def _from_checkpoint(self, name: str) -> _Linear:
        weight, bias = self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"]
        return _Linear(name, weight, bias, self._calibration.inputs(name))

    def _middle(self) -> str:
        return self.w.constant("middle", np.array(MIDDLE, np.uint8))


def _smoothing_factors(weight: Floats, inputs: Floats, smoothing: float) -> Floats:
    """Return what each feature is divided by, (in,)."""
    of_inputs = np.maximum(np.abs(inputs).max(axis=0), 1e-5)
    of_weights = np.maximum(np.abs(weight).max(axis=1), 1e-5)
    factors: Floats = (of_inputs**smoothing / of_weights ** (1 - smoothing)).astype(np.float32)
    return factors
