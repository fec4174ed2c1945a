"""Weights to 8 bits, rounded with regard to what they are multiplied with (GPTQ, Frantar et al. 2022, 2210.17323).

Processors without VNNI instructions multiply 8-bit numbers with `vpmaddubsw`: it adds the products of two neighbouring
inputs in 16 bits, and what passes 32,767 is cut off. So that the same sums come out on every processor, the weights of
such a pair are kept small enough together: PAIR_LEVELS.
"""

import numpy as np
from numpy.typing import NDArray

from model_export.reference import Floats

LEVELS = 127
PAIR_LEVELS = 128
"""Largest sum of the weights of inputs 2n and 2n + 1, positive and negative ones apart: 255 * 128 = 32,640 fits."""
DAMPING = 0.01  # share of the mean diagonal; the paper's own
BLOCK = 64  # rows updated at once: bounds the work without changing the result
TRIANGLE = 128  # size of a triangle that is inverted as it is


def round_weight(
    weight: Floats, inputs: Floats, levels: int = LEVELS, pair_levels: int = PAIR_LEVELS
) -> tuple[NDArray[np.int8], Floats]:
    """Return q (in, out) and a scale for each output (out,), with inputs @ (q * scale) near inputs @ weight.

    `weight` is (in, out), `inputs` (M, in), `levels` the largest weight and `pair_levels` the largest sum of a pair. Each
    input's weights are rounded in turn, and what that changed in the outputs is made up for by the weights not yet
    rounded, as far as the inputs go together.
    """
    scale = _scale(weight, levels, pair_levels)
    upper = _inverse_root(inputs)  # (in, in)
    left = weight.astype(np.float64)
    quantised = np.zeros(weight.shape, np.int8)
    for start in range(0, len(weight), BLOCK):
        stop = min(start + BLOCK, len(weight))
        errors = np.zeros((stop - start, weight.shape[1]))
        for row in range(start, stop):
            left[row] -= upper[start:row, row] @ errors[: row - start]
            used = quantised[row - 1].astype(np.int32) if row % 2 else np.zeros(weight.shape[1], np.int32)
            lowest = np.maximum(-levels, -pair_levels - np.minimum(used, 0))
            highest = np.minimum(levels, pair_levels - np.maximum(used, 0))
            quantised[row] = np.clip(np.rint(left[row] / scale), lowest, highest)
            errors[row - start] = (left[row] - quantised[row] * scale) / upper[row, row]
        left[stop:] -= upper[start:stop, stop:].T @ errors
    return quantised, scale


def _scale(weight: Floats, levels: int, pair_levels: int) -> Floats:
    """Return the width of a level for each output, (out,): the largest weight and the largest pair still fit."""
    pairs = np.zeros((len(weight) + len(weight) % 2, weight.shape[1]), weight.dtype)
    pairs[: len(weight)] = weight
    sums = [np.maximum(sign * pairs, 0).reshape(-1, 2, weight.shape[1]).sum(axis=1) for sign in (1, -1)]
    widest = np.maximum(np.abs(weight).max(axis=0) / levels, np.maximum(*sums).max(axis=0) / pair_levels)
    scale: Floats = np.maximum(widest, np.finfo(np.float32).tiny).astype(np.float32)
    return scale


def _inverse_root(inputs: Floats) -> NDArray[np.float64]:
    """Return upper U with U^T U the inverse of the damped second moment of the inputs."""
    x = inputs.astype(np.float64)
    moment = x.T @ x
    moment[np.diag_indices_from(moment)] += max(DAMPING * float(np.trace(moment)) / len(moment), 1e-12)
    # Read backwards, the moment is L L^T, and U is the inverse of L read backwards: a third of what np.linalg.inv would do.
    lower = np.asarray(np.linalg.cholesky(moment[::-1, ::-1]), np.float64)
    return np.ascontiguousarray(_inverse_triangle(lower)[::-1, ::-1])


def _inverse_triangle(lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of a lower triangular matrix, half by half."""
    size = len(lower)
    if size <= TRIANGLE:
        return np.asarray(np.linalg.inv(lower), np.float64)
    half = size // 2
    first, second = _inverse_triangle(lower[:half, :half]), _inverse_triangle(lower[half:, half:])
    inverse = np.zeros_like(lower)
    inverse[:half, :half], inverse[half:, half:] = first, second
    inverse[half:, :half] = -second @ (lower[half:, :half] @ first)
    return inverse
