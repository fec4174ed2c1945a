"""The paper's optimiser, with bias correction, which its code left out."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import AdamW

BETA1 = 0.9


def optimizer(
    parameters: Mapping[str, Parameter],
    *,
    rate: float,
    weight_decay: float,
    epsilon: float,
    beta2: float = 0.999,
) -> AdamW:
    """AdamW with bias correction (Mosbach et al. 2020: without it small data collapses), β 0.9/`beta2`."""
    decayed = [p for name, p in parameters.items() if is_decayed(name)]
    kept = [p for name, p in parameters.items() if not is_decayed(name)]
    groups = [
        {"params": chosen, "weight_decay": decay, "decay": decay, "epsilon": epsilon}
        for chosen, decay in ((decayed, weight_decay), (kept, 0.0))
        if chosen
    ]  # `decay` and `epsilon` are for `set_rate`
    return AdamW(groups, lr=rate, betas=(BETA1, beta2), eps=epsilon, fused=True)


def is_decayed(name: str) -> bool:
    """Everything decays but biases and LayerNorm (google-research/bert, optimization.py)."""
    # An LSTM's are called bias_ih_l0 and the like; BERT writes LayerNorm, other heads layer_norm.
    return not (name.rsplit(".", 1)[-1].startswith("bias") or "layernorm" in name.lower().replace("_", ""))


def set_rate(optimizer: AdamW, rate: float, step: int, *, bias_correction: bool = True) -> None:
    """Set the learning rate of the step after `step`; without bias correction, take torch's out again."""
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        second = 1.0 if bias_correction else math.sqrt(1.0 - beta2 ** (step + 1))
        factor = 1.0 if bias_correction else (1.0 - beta1 ** (step + 1)) / second
        group["lr"] = rate * factor
        # torch decays by lr * weight_decay and adds eps to the corrected root: neither is to change.
        group["weight_decay"] = group["decay"] / factor
        group["eps"] = group["epsilon"] / second


def trainable(model: nn.Module) -> dict[str, Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def clip(parameters: Mapping[str, Parameter], max_norm: float) -> float:
    """Scale gradients so that their global norm, over all processes, is at most `max_norm`; return the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm, foreach=True)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
