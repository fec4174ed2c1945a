"""The loop of a fine-tuning: its loss, its batches, and an optimiser with a rate for each layer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bert.nn.encoder import has_last_norm
from bert.nn.losses import Loss, blend
from training.engine import optim
from training.engine.distributed import Processes, data_parallel, shard
from training.engine.train_loop import TrainLoop
from training.finetuning.batches import Dataset, EpochBatches
from training.finetuning.recipe import LinearSchedule
from training.settings import FinetuneSettings, TeacherSettings
from training.tasks.base import FeatureBatch, FinetuneTask

_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")
_BODY = "bert."
_POOLER = "bert.pooler."
_LAST_NORM = "bert.encoder.LayerNorm."


def make_loop(
    settings: FinetuneSettings,
    task: FinetuneTask,
    trained: nn.Module,
    data: Dataset,
    schedule: LinearSchedule,
    processes: Processes,
) -> TrainLoop:
    """Make the loop over the data."""
    if task.compares_whole_batches:
        objective: TaskObjective = WholeBatchObjective(trained, task, processes)
    else:
        objective = TaskObjective(trained, task, settings.teacher, settings.r_drop)
    objective.to(processes.device)
    is_whole = processes.world == 1 or settings.sharding == "none"
    if not is_whole:  # the model and not the objective, because held-out data are scored by it alone
        shard(trained, trained.bert.encoder.layer)  # type: ignore[union-attr,arg-type]
    parameters = optim.trainable(objective)
    optimizer = optim.optimizer(
        parameters,
        rate=schedule.peak_rate,
        weight_decay=settings.weight_decay,
        epsilon=settings.adam_epsilon,
        factors=rate_factors(
            parameters,
            settings.layer_decay,
            (settings.head_learning_rate or schedule.peak_rate) / schedule.peak_rate,
            has_last_norm=has_last_norm(trained),
        ),
    )
    return TrainLoop(
        objective,
        data_parallel(objective, processes) if is_whole else objective,
        optimizer,
        EpochBatches(data, settings, task, processes),
        schedule,
        settings,
        processes,
        seeds_steps=processes.world > 1,  # one process draws from one stream, which its saves hold
    )


def rate_factors(
    names: Iterable[str], decay: float, head: float = 1.0, *, has_last_norm: bool = False
) -> dict[str, float]:
    """Return the factor of each parameter's rate: `decay` to the power of its distance from the head.

    Rates shrink from the head to the embeddings (Clark et al. 2020, arXiv 2003.10555, section 3.1).
    The pooler has 1, layer l of L (counted from 0) has decay^(L - l), the embeddings have decay^(L + 1), and the head
    has `head`. A norm after the last layer has 1, where the body has one (`has_last_norm`).
    """
    names = list(names)
    last = (_POOLER, _LAST_NORM) if has_last_norm else (_POOLER,)
    layers = {name: int(found[1]) for name in names if (found := _LAYER.search(name))}
    count = max(layers.values(), default=-1) + 1
    return {
        # Names of an objective's or an adapter's parameters begin with those of the modules around the model.
        name: decay ** _distance(name, layers.get(name), count, last) if _BODY in name else head
        for name in names
    }


def _distance(name: str, layer: int | None, count: int, last: tuple[str, ...]) -> int:
    if layer is not None:
        return count - layer
    return 0 if any(part in name for part in last) else count + 1


class TaskObjective(nn.Module):
    """The one loss of a task. Its targets are counted in the forward pass."""

    weights: ClassVar = {"loss": 1.0}

    def __init__(
        self, trained: nn.Module, task: FinetuneTask, teacher: TeacherSettings | None, r_drop: float = 0.0
    ) -> None:
        """Keep the model that is trained, or the adapter around it."""
        super().__init__()
        self.trained, self.task, self.teacher, self.r_drop = trained, task, teacher, r_drop

    def begin(self, parts: Sequence[FeatureBatch], stand_in: bool, done: float) -> None:
        """Tell the task how much of the run is over."""
        self.task.progress = done

    def targets(self, part: FeatureBatch) -> dict[str, int]:
        """Return no counts: the loss itself counts its targets."""
        return {}

    def forward(self, batch: FeatureBatch) -> dict[str, Loss]:
        """Return the summed loss of a batch, in float32 whatever the precision of the model's products.

        With `r_drop` the batch is read twice, with other dropout, and the two distributions are drawn together
        (Liang et al. 2021, arXiv 2106.14448): (L1 + L2) / 2 + r_drop * (KL(P1 || P2) + KL(P2 || P1)) / 2.
        """
        logits = self._logits(batch)
        if not self.r_drop:
            return {"loss": self._loss(logits, batch)}
        again = self._logits(batch)
        with torch.autocast(logits.device.type, enabled=False):
            apart = self.task.disagreement(logits, again, batch)
        first, second = self._loss(logits, batch), self._loss(again, batch)
        total = (first.total + second.total) / 2 + self.r_drop * apart
        return {"loss": Loss(total, first.targets)}

    def _logits(self, batch: FeatureBatch) -> Tensor:
        return self.task.logits(self.trained, batch).float()

    def _loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare with the labels, and with a teacher where there is one."""
        with torch.autocast(logits.device.type, enabled=False):
            hard = self.task.loss(logits, batch)
            if self.teacher is None:
                return hard
            soft = self.task.soft_loss(logits, batch, self.teacher.temperature)
            return blend(soft, hard, self.teacher.alpha)


class WholeBatchObjective(TaskObjective):
    """The loss of a task that compares all texts of a step with each other, whatever parts and processes compute them.

    A first pass without gradients gives the vectors of all texts, the loss of these gives a gradient for each vector, and a
    second pass takes each part's to the weights: the gradients of the whole batch, with the memory of a part
    (Gao et al. 2021, arXiv 2101.06983).
    """

    def __init__(self, trained: nn.Module, task: FinetuneTask, processes: Processes) -> None:
        """Keep the model that is trained, or the adapter around it."""
        super().__init__(trained, task, None)
        self._processes = processes
        self._parts = iter(list[tuple[Loss, Tensor]]())
        """What each part gives: its share of the loss, and the gradient of its vectors."""

    def begin(self, parts: Sequence[FeatureBatch], stand_in: bool, done: float) -> None:
        """Compare the vectors of a step's parts, and those of the other processes.

        A process that stands in computes an example of another, which does not count.
        """
        super().begin(parts, stand_in, done)
        device = parts[0].input_ids.device
        # The second pass draws the same dropout.
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            vectors = [self._logits(part) for part in parts]
        mine = (
            self._processes.rank,
            torch.cat(vectors).cpu(),
            [(part.targets, part.counts) for part in parts],
        )
        every = self._processes.gather([mine] if not stand_in else [])
        whole = torch.cat([found for _, found, _ in every]).to(device).requires_grad_()
        described = [each for *_, described in every for each in described]
        batch = replace(
            parts[0],
            targets=[target for targets, _ in described for target in targets],
            counts=[count for _, counts in described for count in counts],
            weights=None,
        )
        loss = self._loss(whole, batch)
        (gradient,) = torch.autograd.grad(loss.total, whole)
        before = sum(len(found) for rank, found, _ in every if rank < self._processes.rank)
        own = torch.zeros_like(mine[1]).to(device) if stand_in else gradient[before : before + len(mine[1])]
        # One part counts for all.
        nothing = Loss(loss.total.detach() * 0, 0)
        counted = Loss(loss.total.detach(), loss.targets) if self._processes.leads else nothing
        gradients = torch.split(own, [len(each) for each in vectors])
        self._parts = zip([counted, *[nothing] * (len(parts) - 1)], gradients, strict=True)

    def forward(self, batch: FeatureBatch) -> dict[str, Loss]:
        """Return a part's share of the loss; its gradient is that of the whole batch's loss."""
        counted, gradient = next(self._parts)
        surrogate = (self._logits(batch) * gradient).sum()
        return {"loss": Loss(counted.total + surrogate - surrogate.detach(), counted.targets)}
