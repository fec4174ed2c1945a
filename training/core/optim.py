"""The paper's optimiser and schedule, with the bias correction that its code left out."""

from collections.abc import Mapping

import torch
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
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return AdamW(
        [group for group in groups if group["params"]], lr=rate, betas=(BETA1, beta2), eps=epsilon, fused=True
    )


def is_decayed(name: str) -> bool:
    """Everything decays but biases and LayerNorm (google-research/bert, optimization.py)."""
    # An LSTM's are called bias_ih_l0 and the like; BERT writes LayerNorm, other heads layer_norm.
    return not (name.rsplit(".", 1)[-1].startswith("bias") or "layernorm" in name.lower().replace("_", ""))


def linear_rate(step: int, total_steps: int, warmup_steps: int) -> float:
    """Return the share of the peak rate at a step counted from 0: linear up, then linear down to 0 at the end.

    `schedules.rate_share` is for runs that are measured in shares, which takes each step at its middle.
    """
    if step < warmup_steps:
        return (step + 1) / max(1, warmup_steps)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip(parameters: Mapping[str, Parameter], max_norm: float) -> float:
    """Scale gradients so that their global norm, over all processes, is at most `max_norm`; return the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm, foreach=True)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
