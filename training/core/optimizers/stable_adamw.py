"""StableAdamW: AdamW that slows a tensor down while its gradients are larger than their second moment foresees.

Wortsman et al. 2023 (arXiv 2304.13013), algorithm 2: the update clipping of Adafactor in place of clipped gradients. With
moments corrected for their bias it is the paper's algorithm, which corrects the betas instead.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from training.core.optimizers.adam_steps import AdamSteps, lengths, part


class StableAdamW(AdamSteps):
    """AdamW that divides each tensor's rate by the RMS of its gradient over the root of its second moment, if above 1."""

    def move(self, group: dict[str, Any], parameters: Sequence[Tensor], updates: list[Tensor]) -> None:
        """Decay and move parameters at rates of their own; nothing is read back from the device."""
        weights = [part(p) for p in parameters]
        rates = group["lr"] / self._rms(group, parameters).clamp(min=1.0)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, list((1.0 - group["weight_decay"] * rates).unbind()))
        torch._foreach_mul_(updates, list(rates.unbind()))
        torch._foreach_sub_(weights, updates)

    def _rms(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> Tensor:
        """Return the root mean square of each whole tensor's gradient, entries in units of their second moment (K,)."""
        _, by_second = group["corrections"]
        roots = list(torch._foreach_div([part(self.state[p]["exp_avg_sq"]) for p in parameters], by_second))
        torch._foreach_sqrt_(roots)
        torch._foreach_clamp_min_(roots, group["eps"])
        scaled = list(torch._foreach_div([part(p.grad) for p in parameters if p.grad is not None], roots))
        torch._foreach_div_(scaled, [math.sqrt(p.numel()) for p in parameters])
        return lengths(scaled, parameters[0])
