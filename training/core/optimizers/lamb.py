"""LAMB: Adam whose step of each tensor is as long as the tensor itself, times the rate.

You et al. 2019 (arXiv 1904.00962), algorithm 2; what the paper leaves open is as in google-research/albert,
lamb_optimizer.py: biases and norms take Adam's own step, and so does a tensor where either length is 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from training.core.optimizers.adam_steps import AdamSteps, lengths, part


class Lamb(AdamSteps):
    """LAMB over groups of parameters; `adapts` of a group is False where its tensors take Adam's own step."""

    def move(self, group: dict[str, Any], parameters: Sequence[Tensor], updates: list[Tensor]) -> None:
        """Move parameters by steps in proportion to their lengths."""
        weights = [part(p) for p in parameters]
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            ours, theirs = lengths([*weights, *updates], parameters[0]).chunk(2)
            ratios = torch.where((ours > 0) & (theirs > 0), ours / theirs, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])
