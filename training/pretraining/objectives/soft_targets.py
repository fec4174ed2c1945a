"""A teacher's distributions over the vocabulary, compared at any number of positions in bounded memory.

P positions, E width of what a decoder reads, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from bert.nn.heads import BertForMaskedLM

SLICE_LOGITS = 1 << 24
"""Logits to compute at once; about six times as many numbers are in memory."""


class Decoded(NamedTuple):
    """A decoder, and the states that it reads."""

    states: Tensor
    """(P, E)"""
    weight: Tensor
    """(V, E)"""
    bias: Tensor | None
    """(V,)"""

    @classmethod
    def of(cls, model: BertForMaskedLM, hidden: Tensor) -> "Decoded":
        """Return a model's decoder with what it reads of hidden states (P, H)."""
        head = model.cls.predictions
        return cls(model.decoded(hidden), head.decoder.weight, head.bias)


def soft_targets(ours: Decoded, theirs: Decoded, temperature: float) -> Tensor:
    """Return the sum of `bert.nn.losses.soft_targets` over the positions; no gradient goes to the teacher."""
    total: Tensor = _SoftTargets.apply(*ours, *theirs, temperature)  # type: ignore[no-untyped-call]
    return total


class _SoftTargets(Function):
    """Gradients are computed with the loss, slice by slice, so that logits need not be kept or computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        their_states: Tensor,
        their_weight: Tensor,
        their_bias: Tensor | None,
        temperature: float,
    ) -> Tensor:
        """Return T² · KL(theirs ‖ ours) at temperature T, summed over positions."""
        total = torch.zeros((), dtype=_at_least_float(weight.dtype), device=states.device)
        to_states, to_weight = torch.empty_like(states), torch.zeros_like(weight)
        to_bias = None if bias is None else torch.zeros_like(bias)
        size = max(1, SLICE_LOGITS // len(weight))
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            log_ours = _log_shares(states[part], weight, bias, temperature)
            log_theirs = _log_shares(their_states[part], their_weight, their_bias, temperature)
            total += F.kl_div(log_ours, log_theirs, reduction="sum", log_target=True)
            # The derivative of the divergence by our logits, times T².
            gradient = log_ours.exp_().sub_(log_theirs.exp_()).mul_(temperature)
            to_states[part] = gradient @ weight
            to_weight += gradient.T @ states[part]
            if to_bias is not None:
                to_bias += gradient.sum(0)
        ctx.save_for_backward(to_states, to_weight, to_bias)
        return total * temperature**2

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients of the sum."""
        ours = [None if gradient is None else gradient * factor for gradient in ctx.saved_tensors]
        return (*ours, None, None, None, None)


def _log_shares(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return the logarithms of the probabilities at a temperature (P, V)."""
    logits = F.linear(states, weight, bias)
    return F.log_softmax(logits.to(_at_least_float(logits.dtype)) / temperature, -1)


def _at_least_float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
