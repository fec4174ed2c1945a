"""Optimisers and learning rates of the papers, in the few lines that their formulas take.

They are written from the published code and share nothing with `training`, which they check.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Update = Callable[[nn.Parameter, Tensor, dict[str, Tensor], float, float], None]
"""Changes a weight: weight, gradient, its moments, learning rate, decay."""
Schedule = Callable[[int, int, int], float]
"""Share of the peak rate: step from 0, steps of the warm-up, steps of the run."""


def decays(model: nn.Module) -> dict[str, bool]:
    """Return, by parameter name, whether it decays: all weights but biases and those of LayerNorm."""
    norms = {
        f"{name}.{own}" for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)
        for own, _ in module.named_parameters(recurse=False)
    }  # fmt: skip
    return {
        name: name not in norms and name.split(".")[-1] not in ("bias", "q_bias", "v_bias")
        for name, _ in model.named_parameters()
    }


@dataclass
class Adam:
    """Adam with decoupled decay; with `corrected`, moments are divided by 1 - beta^t."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    corrected: bool = True

    def __call__(
        self, weight: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float
    ) -> None:
        """Take a step."""
        weight.sub_(rate * (self.direction(gradient, state) + decay * weight))

    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Update the moments; return the first over the root of the second."""
        if not state:
            state |= {"m": torch.zeros_like(gradient), "v": torch.zeros_like(gradient), "t": torch.zeros(())}
        state["t"] += 1
        state["m"] = self.beta1 * state["m"] + (1 - self.beta1) * gradient
        state["v"] = self.beta2 * state["v"] + (1 - self.beta2) * gradient**2
        m, v = state["m"], state["v"]
        if self.corrected:
            m, v = m / (1 - self.beta1 ** float(state["t"])), v / (1 - self.beta2 ** float(state["t"]))
        return m / (v.sqrt() + self.epsilon)


@dataclass
class Lamb(Adam):
    """LAMB as google-research/albert has it: no correction; biases and LayerNorm keep the plain rate."""

    corrected: bool = False

    def __call__(
        self, weight: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float
    ) -> None:
        """Take a step as long as a share of the weight's own norm."""
        update = self.direction(gradient, state) + decay * weight
        length, norm = float(weight.norm()), float(update.norm())
        trust = length / norm if decay and length > 0 and norm > 0 else 1.0
        weight.sub_(rate * trust * update)


@dataclass
class StableAdam(Adam):
    """StableAdamW (Wortsman et al. 2023, algorithm 2): a tensor's rate falls where gradients pass their second moment."""

    def __call__(
        self, weight: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], rate: float, decay: float
    ) -> None:
        """Take a step at the rate divided by the root mean square of gradient over second moment, where over 1."""
        direction = self.direction(gradient, state)
        second = state["v"] / (1 - self.beta2 ** float(state["t"]))
        rms = float((gradient**2 / second.clamp(min=self.epsilon**2)).mean().sqrt())
        weight.sub_(rate / max(1.0, rms) * (direction + decay * weight))


def linear_from_peak(step: int, warmup: int, steps: int) -> float:
    """Rise over the warm-up, then fall straight to 0 (fairseq); each step has the rate at its middle."""
    at = step + 0.5
    return at / warmup if at < warmup else (steps - at) / (steps - warmup)


def linear_from_start(step: int, warmup: int, steps: int) -> float:
    """Google's `create_optimizer`: up over the warm-up, then on a line that falls from the first step to 0."""
    return step / warmup if step < warmup else 1 - step / steps


def trapezoid(step: int, warmup: int, steps: int, decay: float = 0.2) -> float:
    """Up, flat, and down as 1 - sqrt over the last `decay` of the run (ModernBERT); the rate at each step's middle."""
    at, first = step + 0.5, steps * (1 - decay)
    if at < warmup:
        return at / warmup
    return 1.0 if at < first else 1 - math.sqrt((at - first) / (steps - first))
