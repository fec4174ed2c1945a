"""Expected seconds of an export's steps on two AVX-512 cores. Other machines are slower or faster in all steps alike."""

import math
from collections.abc import Collection, Iterable, Sized

from bert.checkpoint.weights import Checkpoint

BUILDING, WRITING = 8e-9, 2e-9
"""Seconds for each byte of float32 weights."""
PRODUCT = {"reference": 2.5e-11, "fp32": 1.1e-11, "fp16": 1.1e-11, "int8": 0.4e-11}
"""Seconds for one product and sum of a graph on each core, or of the reference in numpy."""
FITTING = 2.4e-7
"""Seconds for a weight of a layer's matrix in 8 bits: calibrated, and rounded."""
TIMED, SECONDS = ((32, 2), (512, 2)), 0.4
"""Tokens of a batch that is timed and how often it is run at least, and for how long."""


class Costs:
    """Seconds that each step should take."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Count the checkpoint's weights."""
        config = checkpoint.config
        shapes = config.body.shapes(config, projects=False)
        self._weights = sum(math.prod(shape) for name, shape in shapes if ".layer." in name)
        self._products = self._weights * len(config.layer_order) // config.num_layer_weights
        self._bytes = 4 * sum(weight.size for weight in checkpoint.weights.values())
        self.writing = WRITING * self._bytes

    def building(self, precision: str) -> float:
        """Return the seconds for a graph."""
        return BUILDING * self._bytes + (FITTING * self._weights if precision == "int8" else 0)

    def comparing(self, precision: str, texts: Collection[Sized], *, is_first: bool) -> float:
        """Return the seconds for texts alone and packed, and of the first graph for the reference."""
        return self.running((precision, precision, *(["reference"] if is_first else ())), texts)

    def timing(self) -> float:
        """Return the seconds for the timing of both graphs."""
        product = 2 * self._products * (PRODUCT["fp32"] + PRODUCT["int8"])  # on one core
        return sum(max(SECONDS, runs * tokens * product) for tokens, runs in TIMED)

    def running(self, what: Iterable[str], texts: Collection[Sized]) -> float:
        """Return the seconds for texts in graphs of these precisions, or in the reference."""
        return sum(PRODUCT[each] for each in what) * self._products * sum(map(len, texts))
