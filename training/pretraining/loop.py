"""The pretraining loop: global batches, summed losses over their global number of targets, one step at a time."""

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from bert.nn.encoder import BertLayers, recompute_activations
from training.core import optim
from training.core.distributed import Processes
from training.pretraining.batch import PretrainBatch
from training.pretraining.data import Batches, GlobalBatch
from training.pretraining.objectives.base import Objective
from training.pretraining.plan import Plan
from training.pretraining.settings import PretrainSettings
from training.pretraining.state import Progress


class PretrainLoop:
    """Steps of one run; `progress` says where it stands and is what a resumed run starts from."""

    def __init__(
        self, settings: PretrainSettings, objective: Objective, batches: Batches, processes: Processes
    ) -> None:
        """Place the model, wrap it for its processes, and make the optimiser."""
        self.settings, self.batches, self.processes = settings, batches, processes
        self.device = processes.device
        self.plan = Plan(settings, processes.world)
        self.bf16 = settings.precision == "bf16" or (
            settings.precision == "auto" and self.device.type == "cuda"
        )
        self.objective = objective.to(self.device)
        self.trained = wrap(objective, settings, processes)
        self.parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self.optimizer = optim.optimizer(
            self.parameters,
            rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            epsilon=settings.adam_epsilon,
            beta2=settings.adam_beta2,
        )
        self._decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        self.progress = Progress()
        self.stop_asked = self.save_asked = False
        """Set from outside, by a signal and by the clock; all processes hear of it with the next step."""

    @property
    def is_over(self) -> bool:
        """Whether the run has come to its end."""
        return self.done >= 1.0

    @property
    def done(self) -> float:
        """Share of the run that is over, 0 to 1."""
        return self.plan.done(self.progress.step, self.progress.seconds)

    def steps(self) -> Iterator[dict[str, float]]:
        """Train to the end, or until asked to stop; yield the numbers of each step."""
        self.trained.train()
        while not self.is_over:
            progress, started = self.progress, time.perf_counter()
            batch = self.batches.next(progress, self.plan, self.done)
            numbers = self._step(batch)
            progress.step, progress.tokens = progress.step + 1, progress.tokens + int(numbers["step_tokens"])
            progress.phase, progress.cursor = batch.phase, batch.cursor
            seconds = time.perf_counter() - started
            progress.seconds += self._agreed(seconds)
            speed = numbers.pop("step_tokens") / seconds
            yield {"step": progress.step, "tokens": progress.tokens, "tokens_per_second": speed, **numbers}
            if numbers["stop"]:
                return

    def _agreed(self, seconds: float) -> float:
        """Return the same time in every process where time decides what is next; its own elsewhere."""
        if self.settings.max_steps:
            return seconds
        return self.processes.sum([seconds])[0] / self.processes.world

    def _step(self, batch: GlobalBatch) -> dict[str, float]:
        settings, progress, objective = self.settings, self.progress, self.objective
        rate = self.plan.rate(progress.step, progress.seconds)
        self._set_rate(rate)
        self._seed()
        parts = [part.to(self.device) for part in batch.parts]
        names = list(objective.weights)
        mine = [objective.targets(part) for part in parts]
        counts = [float(sum(targets[name] for targets in mine)) for name in names]
        counts += [float(sum(part.tokens for part in parts)), float(sum(part.examples for part in parts))]
        # One message a step: what to divide by, and whether any process was asked for something.
        asked = [float(self.stop_asked), float(self.save_asked)]
        *counts, tokens, examples, stop, save = self.processes.sum([*counts, *asked])
        divisors = {name: max(1.0, count) for name, count in zip(names, counts, strict=True)}
        totals = torch.zeros(len(names), device=self.device)
        for number, part in enumerate(parts):
            totals += self._backward(part, divisors, last=number + 1 == len(parts))
        norm = optim.clip(self.parameters, settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.processes.sum(totals.tolist())
        means = {name: total / divisors[name] for name, total in zip(names, sums, strict=True)}
        loss = sum(objective.weights[name] * mean for name, mean in means.items())
        named = {f"loss_{name}": mean for name, mean in means.items()} if len(names) > 1 else {}
        asked_for = {"stop": stop, "save": save}
        sizes = {"step_tokens": tokens, "mean_length": tokens / examples}
        return {"loss": loss, **named, "lr": rate, "grad_norm": norm, **sizes, **asked_for}

    def _backward(self, part: PretrainBatch, divisors: dict[str, float], last: bool) -> Tensor:
        """Add the gradients of a part; return its summed losses (K,), in the order of the weights."""
        with self._silence(last):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                losses = self.trained(part)
            weights, world = self.objective.weights, self.processes.world
            # The wrappers take the mean over processes, and what is wanted is the sum.
            scaled = [weights[name] * world / divisors[name] * losses[name].total for name in weights]
            torch.stack(scaled).sum().backward()  # type: ignore[no-untyped-call]
        return torch.stack([losses[name].total.detach().float() for name in weights])

    def _silence(self, last: bool) -> AbstractContextManager[None]:
        """Let processes exchange gradients at the last part only."""
        if isinstance(self.trained, DistributedDataParallel) and not last:
            return self.trained.no_sync()
        if isinstance(self.trained, FSDPModule):
            self.trained.set_requires_gradient_sync(last)
        return nullcontext()

    def _seed(self) -> None:
        """Seed dropout and sampling for this step and process: then a resumed run draws what the killed one would have."""
        key = f"{self.settings.seed}/{self.progress.step}/{self.processes.rank}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little"))

    def _set_rate(self, rate: float) -> None:
        """Set the rate of this step; the paper's AdamW needs torch's bias correction taken out of it again."""
        settings, t = self.settings, self.progress.step + 1
        first, second = 1.0 - optim.BETA1**t, math.sqrt(1.0 - settings.adam_beta2**t)
        factor = 1.0 if settings.bias_correction else first / second
        for group, decay in zip(self.optimizer.param_groups, self._decays, strict=True):
            group["lr"] = rate * factor
            # torch decays by lr * weight_decay and adds eps to the corrected root: neither is to change.
            group["weight_decay"] = decay / factor
            group["eps"] = settings.adam_epsilon / (1.0 if settings.bias_correction else second)


def wrap(objective: Objective, settings: PretrainSettings, processes: Processes) -> nn.Module:
    """Return the module whose forward pass trains: compiled, and joined with those of other processes."""
    if settings.activation_checkpointing:
        recompute_activations(objective)
    if settings.compile:
        # Layer by layer: how many positions are masked changes with every batch, the layers do not see it.
        for layers in [module for module in objective.modules() if isinstance(module, BertLayers)]:
            for layer in layers.layer:
                layer.compile(dynamic=None)
    if processes.world > 1 and settings.sharding == "full":
        return _sharded(objective)
    if processes.world > 1:
        ids = [processes.device.index] if processes.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
    return objective


def _sharded(objective: Objective) -> nn.Module:
    for layer in objective.model.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(objective)  # in place: the objective is now an FSDPModule too
    register_fsdp_forward_method(objective, "logits")  # held-out text is scored by these, past `forward`
    return objective
