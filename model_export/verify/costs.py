"""What the steps of an export cost: seconds on two AVX2 cores, of whose proportions those of other machines are not far."""

import math
from collections.abc import Collection, Sized

from bert.checkpoint.weights import Checkpoint

READING, WRITING, BUILDING = 1.5e-9, 3e-9, 3e-9
"""Seconds for a byte of float32 weights."""
PRODUCT = {"reference": 2.5e-11, "fp32": 1.5e-11, "fp16": 1.5e-11, "int8": 0.8e-11}
"""Seconds for one product and sum of a graph, or of the reference in numpy."""
FITTING = 3e-7
"""Seconds for a weight of a layer's matrix in 8 bits: calibrated, and rounded."""
TIMING = 2.5


class Costs:
    """Seconds that each step should take."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Count the checkpoint's weights."""
        config = checkpoint.config
        shapes = config.body.shapes(config, projects=False)
        in_layers = sum(math.prod(shape) for name, shape in shapes if ".layer." in name)
        self._matrices = in_layers * len(config.layer_order) // config.num_layer_weights
        self._weights = in_layers
        self._bytes = 4 * sum(weight.size for weight in checkpoint.weights.values())
        self.writing = WRITING * self._bytes

    def building(self, precision: str) -> float:
        """Return the seconds for a graph."""
        return BUILDING * self._bytes + (FITTING * self._weights if precision == "int8" else 0)

    def comparing(self, precision: str, texts: Collection[Sized]) -> float:
        """Return the seconds for texts alone and packed."""
        return 2 * self.running(precision, texts)

    def judging(self, texts: Collection[Sized]) -> float:
        """Return the seconds for texts in float32 and in 8 bits."""
        return self.running("fp32", texts) + self.running("int8", texts)

    def running(self, what: str, texts: Collection[Sized]) -> float:
        """Return the seconds for texts in a graph of a precision, or in the reference."""
        return PRODUCT[what] * self._matrices * sum(map(len, texts))
