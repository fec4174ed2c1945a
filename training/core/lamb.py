"""LAMB: Adam whose step of each tensor is as long as the tensor itself, times the rate.

You et al. 2019 (arXiv 1904.00962), algorithm 2; what the paper leaves open is as in google-research/albert,
lamb_optimizer.py: biases and norms take Adam's own step, and so does a tensor where either length is 0.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """LAMB over groups of parameters; `adapts` of a group is False where its tensors take Adam's own step.

    `corrections` are what the two moments are divided by, 1 without bias correction: `optim.set_rate` sets them.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        """Take groups with a `weight_decay` each; the other arguments are those of torch's AdamW."""
        super().__init__(
            groups, {"lr": lr, "betas": betas, "eps": eps, "adapts": True, "corrections": (1.0, 1.0)}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient. Tensors that are spread over processes are moved part by part."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            weights = [_part(p) for p in parameters]
            updates = self._updates(group, parameters)
            if group["weight_decay"]:
                torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            if group["adapts"]:
                ratios = _ratios(weights, updates, parameters[0])
                torch._foreach_mul_(updates, list(ratios.unbind()))
            torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _updates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return Adam's steps at a rate of 1, without decay, and keep the moments."""
        for parameter in parameters:
            if not self.state[parameter]:
                moments = ("exp_avg", "exp_avg_sq")
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in moments}
        first = [_part(self.state[p]["exp_avg"]) for p in parameters]
        second = [_part(self.state[p]["exp_avg_sq"]) for p in parameters]
        gradients = [_part(p.grad) for p in parameters if p.grad is not None]
        (beta1, beta2), (by_first, by_second) = group["betas"], group["corrections"]
        torch._foreach_lerp_(first, gradients, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
        roots = list(torch._foreach_div(second, by_second))
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = list(torch._foreach_div(first, by_first))
        torch._foreach_div_(updates, roots)
        return updates


def _part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _ratios(weights: Sequence[Tensor], updates: Sequence[Tensor], one: Tensor) -> Tensor:
    """Return each tensor's length over that of its update (K,); 1 where either is 0.

    `one` parameter says whether tensors are spread over processes: lengths are those of whole tensors.
    """
    lengths = torch.stack([*torch._foreach_norm(list(weights)), *torch._foreach_norm(list(updates))])
    if isinstance(one, DTensor):
        squares = lengths.square()
        dist.all_reduce(squares, group=one.device_mesh.get_group())
        lengths = squares.sqrt()
    ours, theirs = lengths.chunk(2)
    return torch.where((ours > 0) & (theirs > 0), ours / theirs, 1.0)
