"""The encoder's products in 8 bits on the CPU, with answers that do not depend on the batch. T tokens.

Every token's vector is quantised by a scale of its own, taken from that vector alone; weights have one scale for
each output. Three things make the error small at little cost, the first two exact in real arithmetic:
- outlier features are divided by factors that the weights take back (SmoothQuant, Xiao et al. 2022, 2211.10438);
- the activation's output is shifted up by its lowest value, so that all 256 levels are used; the bias takes it back;
- weights are rounded with regard to what they are multiplied with (`rounding.py`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.config import BertConfig
from bert.tensor_names import Weights
from model_export.calibration import Calibration
from model_export.reference import Floats
from model_export.rounding import round_weight
from model_export.rows import RowsForms
from model_export.writer import MICROSOFT, GraphWriter

LOWEST = {"gelu": -0.17, "gelu_new": -0.1701, "relu": 0.0}
"""A little below each activation's minimum."""
SMOOTHING = 0.5  # of 0.3 ... 1.0 among the best on real text (docs/export.md), and the paper's own
SMALLEST = 1e-10  # a vector of zeros is not divided by zero


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """x W + b: weight (in, out), bias (out,), some of the vectors x (M, in)."""

    name: str
    weight: Floats
    bias: Floats
    inputs: Floats


class Int8Forms(RowsForms):
    """Writes 8-bit products in place of the encoder's linear layers; heads and attention stay float32."""

    smoothing = SMOOTHING

    def __init__(
        self, writer: GraphWriter, config: BertConfig, weights: Weights, calibration: Calibration
    ) -> None:
        """`calibration` holds what the checkpoint's linear layers read on real texts."""
        super().__init__(writer, config, weights)
        self._calibration = calibration
        self._activations: set[str] = set()

    def attention(self, x: str, name: str) -> str:
        """Write self-attention, its three projections as one product; (T, H) → (T, H)."""
        parts = [self._from_checkpoint(f"{name}.{part}") for part in ("query", "key", "value")]
        weight = np.concatenate([part.weight for part in parts], axis=1)
        bias = np.concatenate([part.bias for part in parts])
        joined = self._product(x, _Linear(name, weight, bias, parts[0].inputs))
        in_rows = self.w.node("Reshape", joined, self._joined_shape())
        projections = self.w.nodes("Split", in_rows, outputs=3, axis=-1, num_outputs=3)
        attended = self.w.node(
            "MultiHeadAttention",
            *(*projections, "", "", self._attention_bias),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return self.as_tokens(attended)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half; (T, H) → (T, I)."""
        activated = self.activation(self._product(x, self._from_checkpoint(name)))
        self._activations.add(activated)
        return activated

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + b + residual); (T, in) → (T, H)."""
        return self._add_norm(self._product(x, self._from_checkpoint(dense)), residual, norm)

    def _product(self, x: str, linear: _Linear) -> str:
        """Write x W + b in 8 bits; (T, in) → (T, out)."""
        if x in self._activations:
            quantised, scale, linear = self._quantised_activation(x, linear)
            zero = self.w.constant("zero_0", np.array(0, np.uint8))
        else:
            quantised, scale, linear = self._quantised_signed(x, linear)
            zero = self.w.constant("zero_128", np.array(128, np.uint8))
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
        highest = self.w.node("ReduceMax", smooth, axis, keepdims=0)
        lowest = self.w.node("ReduceMin", smooth, axis, keepdims=0)
        scale = self._scale(self.w.node("Max", highest, self.w.node("Neg", lowest)), levels=127)
        middle = self.w.constant("middle", np.array([128], np.uint8))
        zeros = self.w.node("Expand", middle, self.w.node("Shape", scale))
        return self.w.node("QuantizeLinear", smooth, scale, zeros, axis=0), scale, linear

    def _rounded(self, linear: _Linear) -> tuple[NDArray[np.int8], Floats]:
        """Return the weight in 8 bits and a scale for each output (out,)."""
        return round_weight(linear.weight, linear.inputs)

    def _smoothed(self, x: str, linear: _Linear) -> tuple[str, _Linear]:
        """Write x with its outlier features divided down; returns it, and the layer that multiplies them back."""
        factors = _smoothing_factors(linear, self.smoothing)
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

    def _joined_shape(self) -> str:
        shape = self.w.node("Shape", "input_ids")
        return self.w.node("Concat", shape, self.w.constant("rest", [-1]), axis=0)


def _smoothing_factors(linear: _Linear, smoothing: float) -> Floats:
    """Return what each feature is divided by, (in,)."""
    inputs = np.maximum(np.abs(linear.inputs).max(axis=0), 1e-5)
    weights = np.maximum(np.abs(linear.weight).max(axis=1), 1e-5)
    factors: Floats = (inputs**smoothing / weights ** (1 - smoothing)).astype(np.float32)
    return factors
