"""Exponential moving average of the trained weights, which evaluations and the best checkpoint use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

AVERAGE = "ema"
"""Key of a parameter's average in the optimiser's state: there a save has it and a resumed run finds it."""


class Ema:
    """Averages of an optimiser's parameters, moved after each of its steps.

    torch's AveragedModel would copy frozen weights too, and its rate knows no beginning. The decay after `n` steps is
    at most (1 + n) / (10 + n), so that a short run forgets its first weights (as in TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, optimizer: Optimizer, decay: float, step: Callable[[], int]) -> None:
        """Follow the optimiser; `step` tells how many steps it has taken before the present one."""
        self.optimizer, self.decay, self.step = optimizer, decay, step
        optimizer.register_step_post_hook(self._update)

    @torch.no_grad()
    def _update(self, optimizer: Optimizer, *_: Any) -> None:
        pairs = []
        for state, parameter in self._stepped():
            if AVERAGE not in state:
                state[AVERAGE] = parameter.detach().clone()
            pairs.append((state[AVERAGE], parameter.detach()))
        decay = min(self.decay, (1 + self.step()) / (10 + self.step()))
        averages, weights = (list(each) for each in zip(*pairs, strict=True))
        torch._foreach_lerp_(averages, weights, 1.0 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model its averaged weights for a while; the trained ones come back bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for state, parameter in self._stepped():
            if AVERAGE in state:
                kept = parameter.detach().clone()
                parameter.copy_(state[AVERAGE])
                state[AVERAGE].copy_(kept)

    def _stepped(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the parameters that have been moved, each with its state. Adam fills an empty state at its first step."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if state := self.optimizer.state.get(parameter):
                    yield state, parameter
