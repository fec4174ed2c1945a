"""Weights to 8 bits, rounded with regard to what they are multiplied with (GPTQ, Frantar et al. 2022, 2210.17323)."""

import numpy as np
from numpy.typing import NDArray

from model_export.reference import Floats

LEVELS = 127
DAMPING = 0.01  # share of the mean diagonal; the paper's own
BLOCK = 64  # rows updated at once: bounds the work without changing the result


def round_weight(weight: Floats, inputs: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return q (in, out) and a scale for each output (out,), with inputs @ (q * scale) near inputs @ weight.

    `weight` is (in, out), `inputs` (M, in). Each input's weights are rounded in turn, and what that changed in the
    outputs is made up for by the weights not yet rounded, as far as the inputs go together.
    """
    scale = np.maximum(np.abs(weight).max(axis=0) / LEVELS, np.finfo(np.float32).tiny).astype(np.float32)
    upper = _inverse_root(inputs)  # (in, in)
    left = weight.astype(np.float64)
    quantised = np.empty(weight.shape, np.int8)
    for start in range(0, len(weight), BLOCK):
        stop = min(start + BLOCK, len(weight))
        errors = np.empty((stop - start, weight.shape[1]))
        for row in range(start, stop):
            quantised[row] = np.clip(np.rint(left[row] / scale), -LEVELS, LEVELS)
            error = (left[row] - quantised[row] * scale) / upper[row, row]
            left[row + 1 : stop] -= np.outer(upper[row, row + 1 : stop], error)
            errors[row - start] = error
        left[stop:] -= upper[start:stop, stop:].T @ errors
    return quantised, scale


def _inverse_root(inputs: Floats) -> NDArray[np.float64]:
    """Return upper U with U^T U the inverse of the damped second moment of the inputs."""
    x = inputs.astype(np.float64)
    moment = x.T @ x
    moment[np.diag_indices_from(moment)] += max(DAMPING * float(np.trace(moment)) / len(moment), 1e-12)
    # The lower Cholesky factor of the inverse, transposed, is the U that the recursion runs on.
    root: NDArray[np.float64] = np.linalg.cholesky(np.linalg.inv(moment)).T
    return root
