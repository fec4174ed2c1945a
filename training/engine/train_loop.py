"""The steps of a run: batches of all processes, summed losses over their global number of targets.

What is trained gives the loop its losses, a source of batches its data, a schedule its rate and end. K losses.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bert.nn.losses import Loss
from training.engine import optim
from training.engine.device import Moment, StepNumbers, uses_bf16
from training.engine.distributed import Processes, is_sharded
from training.engine.state import RunState


@dataclass(frozen=True, slots=True)
class StepData:
    """One step's data: what this process computes, and where the next step's begins."""

    parts: list[Any]
    """Batches on the device, computed one after another; at least one."""
    tokens: int
    examples: int
    position: dict[str, Any]
    stand_in: bool = False
    """True where this process has no share: it computes another's example, which does not count."""


class DataSource(Protocol):
    """The data of a run, step by step."""

    def next(self, state: RunState) -> StepData:
        """Return the data of the step that follows `state`."""

    def close(self) -> None:
        """End what makes the data."""


class RateSchedule(Protocol):
    """Rate and end of a run."""

    @property
    def total_steps(self) -> int:
        """Steps of the run; 0 where the clock ends it."""

    @property
    def total_s(self) -> float:
        """Seconds of the run; 0 where its steps end it."""

    def done(self, step: int, seconds: float) -> float:
        """Return the share of the run that is over, 0 to 1."""

    def rate(self, step: int, seconds: float) -> float:
        """Return the learning rate of the step after `step` steps."""


class LoopSettings(Protocol):
    """The settings that the loop reads."""

    max_grad_norm: float
    seed: int
    precision: Literal["auto", "fp32", "bf16"]


class TrainLoop:
    """Steps of one run; `state` says where it stands and is what a resumed run starts from."""

    def __init__(
        self,
        objective: nn.Module,
        trained: nn.Module,
        optimizer: Optimizer,
        data: DataSource,
        schedule: RateSchedule,
        settings: LoopSettings,
        processes: Processes,
        *,
        seeds_steps: bool,
        bias_correction: bool = True,
    ) -> None:
        """Keep what is trained: `objective`, and `trained`, the same joined with other processes.

        Its `weights` are the factors of the losses in their sum, and its forward pass gives the summed losses of a part.
        `targets(part)` counts the targets of each before it; nothing where only the one loss can tell.

        `begin(parts, stand_in, done)`, where it has one, is called before the parts of each step, in all processes at once.

        With `seeds_steps`, dropout depends on seed, step and process only; otherwise one stream runs through all steps.
        """
        self.objective, self.trained, self.optimizer = objective, trained, optimizer
        self.data, self.schedule, self.settings, self.processes = data, schedule, settings, processes
        self.seeds_steps, self.bias_correction = seeds_steps, bias_correction
        self.sharded = next(filter(is_sharded, trained.modules()), None)
        """The module whose weights are in parts, a part in each process; None where all are whole."""
        self.device = processes.device
        self.weights: dict[str, float] = objective.weights  # type: ignore[assignment]
        self.parameters = optim.trainable(objective)
        apart: tuple[str, ...] = getattr(objective, "clipped_apart", ())
        self.clip_groups = optim.clip_groups(self.parameters, apart)
        self.bf16 = uses_bf16(settings.precision, self.device)
        self.state = RunState()
        self.stop_asked = self.save_asked = False
        """Set from outside, by a signal and by the clock; all processes hear of it in the same step."""
        self.stopping = self.saving = False
        """True once all processes have agreed to stop, or to save, after a step."""

    @property
    def done(self) -> float:
        """Share of the run that is over, 0 to 1."""
        return self.schedule.done(self.state.step, self.state.seconds)

    @property
    def is_over(self) -> bool:
        """True at the end of the run."""
        return self.done >= 1.0

    @property
    def lag(self) -> int:
        """Most steps that the device is behind: 1 on a GPU, none on a CPU."""
        return int(self.device.type == "cuda")

    def steps(self) -> Iterator[StepNumbers]:
        """Train to the end, or until asked to stop; yield the numbers of each step.

        A GPU may still be at work on the step, and to read its numbers is to wait.
        """
        self.trained.train()
        before: StepNumbers | None = None
        while not self.is_over and not self.stopping:
            began, state = Moment(self.device), self.state
            data = self.data.next(state)
            numbers = self.step(data)
            if before is not None:
                before.ended.wait()
            before = numbers
            state.step, state.position = state.step + 1, data.position
            state.tokens += int(numbers.tokens)
            state.seconds += self._agreed(began.host_seconds)
            numbers.known |= {"step": state.step, "tokens": state.tokens}
            numbers.began, numbers.position = began, data.position
            numbers.seconds, numbers.done = state.seconds, self.done
            yield numbers

    def step(self, data: StepData) -> StepNumbers:
        """Take one step of the optimiser; return its numbers. The host does not wait for a GPU."""
        state = self.state
        rate = self.schedule.rate(state.step, state.seconds)
        optim.set_rate(self.optimizer, rate, state.step, bias_correction=self.bias_correction)
        if self.seeds_steps:
            self._seed()
        divisors, tokens, examples = self._counted(data)
        totals, targets = self._computed(data, divisors)
        if not divisors:
            divisors = {name: max(1.0, count) for name, count in zip(self.weights, targets, strict=True)}
            self._divide_gradients(*divisors.values())
        norms = [optim.clip(group, self.settings.max_grad_norm) for group in self.clip_groups]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        known = {"lr": rate, "mean_length": tokens / examples}
        measured = torch.cat([totals, torch.stack(norms).double()])
        return StepNumbers(known, tokens, measured, lambda read: self._named(read, divisors))

    def _named(self, measured: list[float], divisors: dict[str, float]) -> dict[str, float]:
        """Return the loss, its parts where it has several, and the gradient norm."""
        totals, norms = measured[: len(self.weights)], measured[len(self.weights) :]
        means = {name: total / divisors[name] for name, total in zip(self.weights, totals, strict=True)}
        loss = sum(self.weights[name] * mean for name, mean in means.items())
        named = {f"loss_{name}": mean for name, mean in means.items()} if len(means) > 1 else {}
        return {"loss": loss, **named, "grad_norm": math.hypot(*norms)}

    def _counted(self, data: StepData) -> tuple[dict[str, float], float, float]:
        """Return the divisor of each loss, where it is known by now, and tokens and examples of all processes."""
        mine = [self.objective.targets(part) for part in data.parts]  # type: ignore[operator]
        names, share = list(mine[0]), 0.0 if data.stand_in else 1.0
        counts = [share * sum(targets[name] for targets in mine) for name in names]
        *sums, tokens, examples = self.processes.sum([*counts, float(data.tokens), float(data.examples)])
        return {name: max(1.0, count) for name, count in zip(names, sums, strict=True)}, tokens, examples

    def _computed(self, data: StepData, divisors: dict[str, float]) -> tuple[Tensor, list[float]]:
        """Leave the gradients of all processes; return their summed losses (K,) and numbers of targets (K,).

        The message that sums the latter also tells whether any process was asked for something.
        """
        size, share = len(self.weights), 0.0 if data.stand_in else 1.0
        totals = torch.zeros(size, dtype=torch.float64, device=self.device)
        targets = [0.0] * size
        if (begin := getattr(self.objective, "begin", None)) is not None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                begin(data.parts, data.stand_in, self.done)
        for number, part in enumerate(data.parts):
            losses = self._backward(part, divisors, share, last=number + 1 == len(data.parts))
            totals += share * torch.stack([loss.total.detach().double() for loss in losses])
            targets = [sum_ + share * loss.targets for sum_, loss in zip(targets, losses, strict=True)]
        asked = [float(self.stop_asked), float(self.save_asked)]
        *sums, stop, save = self.processes.sum([*targets, *asked])
        self.stopping, self.saving = bool(stop), bool(save)
        return self.processes.sum_on_device(totals), sums

    def _backward(self, part: Any, divisors: dict[str, float], share: float, last: bool) -> list[Loss]:
        """Add the gradients of a part; return its losses in the order of the weights."""
        with self._unsynchronised(last):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                losses = self.trained(part)
            # The wrappers take the mean over processes, and what is wanted is the sum.
            factor = share * self.processes.world
            scaled = [
                weight * factor / divisors.get(name, 1.0) * losses[name].total
                for name, weight in self.weights.items()
            ]
            torch.stack(scaled).sum().backward()  # type: ignore[no-untyped-call]
        return [losses[name] for name in self.weights]

    def _unsynchronised(self, last: bool) -> AbstractContextManager[None]:
        """Let processes exchange gradients at the last part only."""
        if isinstance(self.trained, DistributedDataParallel) and not last:
            return self.trained.no_sync()
        if self.sharded is not None:
            self.sharded.set_requires_gradient_sync(last)
        return nullcontext()

    def _divide_gradients(self, targets: float) -> None:
        """Turn gradients of a sum into those of the mean over the whole step's targets."""
        torch._foreach_div_([p.grad for p in self.parameters.values() if p.grad is not None], targets)

    def _agreed(self, seconds: float) -> float:
        """Return the same time in every process where time decides what is next; its own elsewhere."""
        if self.schedule.total_steps:
            return seconds
        return self.processes.sum([seconds])[0] / self.processes.world

    def _seed(self) -> None:
        """Seed dropout and sampling: then a resumed run draws what the killed one would have."""
        key = f"{self.settings.seed}/{self.state.step}/{self.processes.rank}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little"))
