"""Adam's moments and steps, for optimisers that change the length of the steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class AdamSteps(Optimizer, ABC):
    """Adam over groups of parameters; a subclass sets the length of each tensor's step.

    `corrections` of a group are what the two moments are divided by, 1 without bias correction: `optim.set_rate` sets them.
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
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self.move(group, parameters, self._updates(group, parameters))

    @abstractmethod
    def move(self, group: dict[str, Any], parameters: Sequence[Tensor], updates: list[Tensor]) -> None:
        """Move parameters of a group, given Adam's steps at a rate of 1, without decay."""

    def _updates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> list[Tensor]:
        """Keep the moments; return the steps."""
        for parameter in parameters:
            if not self.state[parameter]:
                moments = ("exp_avg", "exp_avg_sq")
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in moments}
        first = [part(self.state[p]["exp_avg"]) for p in parameters]
        second = [part(self.state[p]["exp_avg_sq"]) for p in parameters]
        gradients = [part(p.grad) for p in parameters if p.grad is not None]
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


def part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def lengths(parts: Sequence[Tensor], one: Tensor) -> Tensor:
    """Return the Euclidean length of each whole tensor (K,), of the parts that this process has.

    `one` parameter says whether they are spread over processes.
    """
    found = torch.stack(torch._foreach_norm(list(parts)))
    if not isinstance(one, DTensor):
        return found
    squares = found.square()
    dist.all_reduce(squares, group=one.device_mesh.get_group())
    return squares.sqrt()
