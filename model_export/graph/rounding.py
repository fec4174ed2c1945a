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
BLOCK, FEW = 128, 16  # rows updated at once, and rounded before the block's others are: bounds the work alone
TRIANGLE = 128  # size of a triangle that is inverted as it is


def round_weight(
    weight: Floats, root: NDArray[np.float64], levels: int = LEVELS, pair_levels: int = PAIR_LEVELS
) -> tuple[NDArray[np.int8], Floats]:
    """Return q (in, out) and a scale for each output (out,), with inputs @ (q * scale) near inputs @ weight.

    `weight` is (in, out), `root` the `inverse_root` of the inputs, `levels` the largest weight and `pair_levels` the largest
    sum of a pair. Each input's weights are rounded in turn, from the last to the first, and what that changed in the outputs
    is made up for by the weights not yet rounded, as far as the inputs go together.
    """
    scale = _scale(weight, levels, pair_levels)
    left = weight.astype(np.float64, order="C")
    quantised = np.zeros(weight.shape, np.int8)
    for stop in range(len(weight), 0, -BLOCK):
        start = max(stop - BLOCK, 0)
        errors = np.zeros((stop - start, weight.shape[1]))
        for end in range(stop, start, -FEW):
            begin = max(end - FEW, start)
            for row in range(end - 1, begin - 1, -1):
                partner = quantised[row + 1] if row % 2 == 0 and row + 1 < len(weight) else None
                quantised[row] = _nearest(left[row] / scale, partner, levels, pair_levels)
                error = errors[row - start] = (left[row] - quantised[row] * scale) / root[row, row]
                left[begin:row] -= root[row, begin:row, None] * error
            left[start:begin] -= root[begin:end, start:begin].T @ errors[begin - start : end - start]
        left[:start] -= root[start:stop, :start].T @ errors
    return quantised, scale


def _nearest(
    exact: NDArray[np.float64], partner: NDArray[np.int8] | None, levels: int, pair_levels: int
) -> NDArray[np.float64]:
    """Return the levels nearest to one input's weights (out,) that fit beside those of the other input of its pair."""
    nearest = np.rint(exact)
    if partner is None:
        return nearest.clip(-levels, levels, out=nearest)
    used = partner.astype(np.float64)
    lowest = np.maximum(-levels, -pair_levels - np.minimum(used, 0))
    highest = np.minimum(levels, pair_levels - np.maximum(used, 0))
    return nearest.clip(lowest, highest, out=nearest)


def _scale(weight: Floats, levels: int, pair_levels: int) -> Floats:
    """Return the width of a level for each output, (out,): the largest weight and the largest pair still fit."""
    pairs = np.zeros((len(weight) + len(weight) % 2, weight.shape[1]), weight.dtype)
    pairs[: len(weight)] = weight
    sums = [np.maximum(sign * pairs, 0).reshape(-1, 2, weight.shape[1]).sum(axis=1) for sign in (1, -1)]
    widest = np.maximum(np.abs(weight).max(axis=0) / levels, np.maximum(*sums).max(axis=0) / pair_levels)
    scale: Floats = np.maximum(widest, np.finfo(np.float32).tiny).astype(np.float32)
    return scale


def inverse_root(inputs: Floats) -> NDArray[np.float64]:
    """Return lower V with V^T V the inverse of the damped second moment of the inputs; (M, in) → (in, in)."""
    x = inputs.astype(np.float64)
    moment = x.T @ x
    moment[np.diag_indices_from(moment)] += max(DAMPING * float(np.trace(moment)) / len(moment), 1e-12)
    return _inverse_factor(moment)


def _inverse_factor(moment: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of the lower L with L L^T the moment; half by half, so that products do the work."""
    if len(moment) <= TRIANGLE:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(moment)), np.float64)
    half = len(moment) // 2
    inverse = np.empty_like(moment)
    first = inverse[:half, :half] = _inverse_factor(moment[:half, :half])
    below = moment[half:, :half] @ first.T  # L's own
    second = inverse[half:, half:] = _inverse_factor(moment[half:, half:] - below @ below.T)
    np.matmul(second, below @ first, out=inverse[half:, :half])
    inverse[half:, :half] *= -1
    inverse[:half, half:] = 0
    return inverse
