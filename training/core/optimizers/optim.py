"""Optimisers by name, the rate of a step, and the clipping of gradients."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from training.core.optimizers.lamb import Lamb
from training.core.optimizers.stable_adamw import StableAdamW

BETA1 = 0.9
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
    # An LSTM's are called bias_ih_l0 and the like; BERT writes LayerNorm, other heads layer_norm or norm.
    return not (name.rsplit(".", 1)[-1].startswith("bias") or "norm" in name.lower())


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
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
