"""Optimisers by name, LAMB and StableAdamW among them, the rate of a step, and the clipping of gradients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from training.engine.distributed import is_spread

BETA1 = 0.9


class AdamSteps(Optimizer, ABC):
    """Adam over groups of parameters; a subclass sets the length of each tensor's step.

    `corrections` of a group are what the two moments are divided by, 1 without bias correction: `set_rate` sets them.
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
        """Update the moments; return the steps."""
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


class Lamb(AdamSteps):
    """Adam whose step of each tensor is as long as the tensor itself, times the rate.

    You et al. 2019 (arXiv 1904.00962), algorithm 2; what the paper leaves open is as in google-research/albert,
    lamb_optimizer.py: biases and norms (groups whose `adapts` is False) take Adam's own step, and so does a tensor where
    either length is 0.
    """

    def move(self, group: dict[str, Any], parameters: Sequence[Tensor], updates: list[Tensor]) -> None:
        """Move parameters by steps in proportion to their lengths."""
        weights = [_part(p) for p in parameters]
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            ours, theirs = _lengths([*weights, *updates], parameters[0]).chunk(2)
            ratios = torch.where((ours > 0) & (theirs > 0), ours / theirs, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


class StableAdamW(AdamSteps):
    """AdamW that divides each tensor's rate by the RMS of its gradient over the root of its second moment, if above 1.

    Wortsman et al. 2023 (arXiv 2304.13013), algorithm 2: the update clipping of Adafactor in place of clipped gradients.
    With moments corrected for their bias it is the paper's algorithm, which corrects the betas instead.
    """

    def move(self, group: dict[str, Any], parameters: Sequence[Tensor], updates: list[Tensor]) -> None:
        """Decay and move parameters at rates of their own; nothing is read back from the device."""
        weights = [_part(p) for p in parameters]
        rates = group["lr"] / self._rms(group, parameters).clamp(min=1.0)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, list((1.0 - group["weight_decay"] * rates).unbind()))
        torch._foreach_mul_(updates, list(rates.unbind()))
        torch._foreach_sub_(weights, updates)

    def _rms(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> Tensor:
        """Return the root mean square of each whole tensor's gradient, entries in units of their second moment (K,)."""
        _, by_second = group["corrections"]
        roots = list(torch._foreach_div([_part(self.state[p]["exp_avg_sq"]) for p in parameters], by_second))
        torch._foreach_sqrt_(roots)
        torch._foreach_clamp_min_(roots, group["eps"])
        scaled = list(torch._foreach_div([_part(p.grad) for p in parameters if p.grad is not None], roots))
        torch._foreach_div_(scaled, [math.sqrt(p.numel()) for p in parameters])
        return _lengths(scaled, parameters[0])


def _part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is spread."""
    return tensor.to_local() if is_spread(tensor) else tensor


def _lengths(parts: Sequence[Tensor], one: Tensor) -> Tensor:
    """Return the Euclidean length of each whole tensor (K,), of the parts that this process has.

    `one` parameter says whether they are spread over processes.
    """
    found = torch.stack(torch._foreach_norm(list(parts)))
    if not is_spread(one):
        return found
    squares = found.square()
    dist.all_reduce(squares, group=one.device_mesh.get_group())
    return squares.sqrt()


_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": partial(AdamW, fused=True),
    "lamb": Lamb,
    "stable_adamw": StableAdamW,
}
"""Optimisers by name. All but AdamW read `corrections` of a group, which `set_rate` sets before each step."""


def optimizer(
    parameters: Mapping[str, Parameter],
    *,
    rate: float,
    weight_decay: float,
    epsilon: float,
    beta2: float = 0.999,
    name: str = "adamw",
    decay_all: bool = False,
    factors: Mapping[str, float] | None = None,
) -> Optimizer:
    """Return an optimiser with β 0.9/`beta2` that neither decays biases and norms nor adapts the length of their steps.

    With `decay_all` they decay too, as in fairseq. `factors` of the rate belong to parameters by name; without, they are 1.
    """
    grouped: dict[tuple[bool, float], list[Parameter]] = {}
    for parameter_name, parameter in parameters.items():
        key = not is_decayed(parameter_name), factors[parameter_name] if factors else 1.0
        grouped.setdefault(key, []).append(parameter)
    groups = []
    for is_kept, factor in sorted(grouped):
        decay = weight_decay * decay_all if is_kept else weight_decay
        # `decay`, `epsilon` and `factor` are for `set_rate`, `adapts` for LAMB.
        read = {"decay": decay, "epsilon": epsilon, "factor": factor, "adapts": not is_kept}
        groups.append({"params": grouped[is_kept, factor], "weight_decay": decay, **read})
    return _OPTIMIZERS[name](groups, lr=rate, betas=(BETA1, beta2), eps=epsilon)


def is_decayed(name: str) -> bool:
    """Tell whether a parameter decays: all but biases and LayerNorm do (google-research/bert, optimization.py)."""
    return not (name.endswith("bias") or "norm" in name.lower())  # LayerNorm, layer_norm or norm


def set_rate(optimizer: Optimizer, rate: float, step: int, *, bias_correction: bool = True) -> None:
    """Set the learning rate of the step after `step`, and whether its moments are corrected for their bias.

    Without the correction small data collapses (Mosbach et al. 2020); the code of BERT's paper has none.
    """
    for group in optimizer.param_groups:
        (beta1, beta2), own_rate = group["betas"], rate * group["factor"]
        if not isinstance(optimizer, AdamW):
            corrections = (1.0 - beta1 ** (step + 1), 1.0 - beta2 ** (step + 1))
            group["lr"], group["corrections"] = own_rate, corrections if bias_correction else (1.0, 1.0)
            continue
        # torch's correction is always on: without, it is taken out again.
        second = 1.0 if bias_correction else math.sqrt(1.0 - beta2 ** (step + 1))
        factor = 1.0 if bias_correction else (1.0 - beta1 ** (step + 1)) / second
        group["lr"] = own_rate * factor
        # torch decays by lr * weight_decay and adds eps to the corrected root: neither is to change.
        group["weight_decay"] = group["decay"] / factor
        group["eps"] = group["epsilon"] / second


def trainable(model: nn.Module) -> dict[str, Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def clip_groups(parameters: Mapping[str, Parameter], apart: Sequence[str]) -> list[dict[str, Parameter]]:
    """Return the parameters to clip together: those whose names begin with each of `apart`, and the others."""
    rest = dict(parameters)
    groups = [{name: rest.pop(name) for name in parameters if name.startswith(prefix)} for prefix in apart]
    return [rest, *groups]


def clip(parameters: Mapping[str, Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their global norm, over all processes, is at most `max_norm`; return the norm before.

    A `max_norm` of 0 leaves them as they are.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm or math.inf, foreach=True)
    return norm.full_tensor() if is_spread(norm) else norm
