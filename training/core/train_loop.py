"""The fine-tuning loop: batches, steps, evaluations, and saves that a killed run goes on from."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bert.encoding import Encoding
from bert.errors import TrainingError
from bert.nn.heads import BertHead
from bert.nn.losses import Loss, blend
from training.core import optim
from training.core.batches import draw, epoch_batches
from training.core.distributed import pick_device
from training.core.model import trainable
from training.core.predict import predict
from training.core.state import Progress
from training.settings import FinetuneSettings
from training.tasks.base import Batch, Feature, FinetuneTask, Floats, collate

logger = logging.getLogger(__name__)


@dataclass
class Dataset:
    """Training features of all files, one file after another, and how often each is drawn an epoch."""

    features: list[Feature]
    counts: list[int]
    repeats: list[float]

    def batches(self, settings: FinetuneSettings, epoch: int) -> list[NDArray[np.int64]]:
        """Return the epoch's batches as indices into `features`."""
        drawn = draw(self.counts, self.repeats, settings.seed, epoch)
        lengths = [self.features[i].tokens for i in drawn]
        cut = epoch_batches(lengths, settings.batch_size, settings.seed, epoch)
        return [drawn[batch] for batch in cut]


class Loop:
    """One run; `progress` says where it stands and is what a resumed run starts from."""

    def __init__(
        self,
        settings: FinetuneSettings,
        task: FinetuneTask,
        model: BertHead,
        trained: nn.Module,
        data: Dataset,
    ) -> None:
        """Make the optimiser and count the steps. `settings` leave neither learning_rate nor epochs open."""
        if settings.learning_rate is None or settings.epochs is None:
            raise ValueError("learning_rate and epochs must be chosen before the loop is made")
        self.settings, self.task, self.data = settings, task, data
        self.peak_rate, self.epochs = settings.learning_rate, settings.epochs
        self.device = pick_device(settings.device)
        self.model, self.trained = model.to(self.device), trained.to(self.device)
        self.parameters = trainable(trained)
        self.optimizer = optim.optimizer(
            self.parameters,
            rate=self.peak_rate,
            weight_decay=settings.weight_decay,
            epsilon=settings.adam_epsilon,
        )
        self.bf16 = settings.precision == "bf16" or (
            settings.precision == "auto" and self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        self.progress = Progress(epochs=self.epochs)
        self.stop_asked = False
        """Set from outside: the step that is being done is the last one, and is saved."""
        self.total_steps = self._count_steps()
        self.warmup_steps = round(settings.warmup_ratio * self.total_steps)

    def _count_steps(self) -> int:
        whole, part = int(self.epochs), self.epochs % 1
        steps = sum(len(self.data.batches(self.settings, epoch)) for epoch in range(whole))
        if part:
            steps += math.ceil(part * len(self.data.batches(self.settings, whole)))
        return min(steps, self.settings.max_steps or steps)

    def run(self, on_step: Callable[[dict[str, float]], None], on_mark: Callable[[bool, bool], bool]) -> None:
        """Train to the end. `on_step` gets each step's numbers.

        `on_mark(evaluate, save)` is called where an evaluation or a save is due; it returns whether to stop.
        """
        self.trained.train()
        assert self.progress.step < self.total_steps, "the run is over"
        while self.progress.step < self.total_steps:
            batches = self.data.batches(self.settings, self.progress.epoch)
            for index in range(self.progress.batch_in_epoch, len(batches)):
                on_step(self.step([self.data.features[i] for i in batches[index]]))
                self.progress.batch_in_epoch = index + 1
                last = index + 1 == len(batches)
                if last:
                    self.progress.epoch, self.progress.batch_in_epoch = self.progress.epoch + 1, 0
                if self._mark(last, on_mark) or self.progress.step >= self.total_steps:
                    return

    def _mark(self, epoch_ended: bool, on_mark: Callable[[bool, bool], bool]) -> bool:
        step, settings = self.progress.step, self.settings
        ended = step >= self.total_steps
        every = settings.eval_every_steps
        evaluate = ended or (step % every == 0 if every else epoch_ended)
        stop = self.stop_asked
        save = evaluate or stop or bool(settings.save_every_steps and step % settings.save_every_steps == 0)
        return (on_mark(evaluate, save) if save else False) or stop

    def step(self, features: Sequence[Feature]) -> dict[str, float]:
        """Take one step of the optimiser over the features, computed in parts; return its numbers."""
        started, settings = time.perf_counter(), self.settings
        rate = self.peak_rate * optim.linear_rate(self.progress.step, self.total_steps, self.warmup_steps)
        optim.set_rate(self.optimizer, rate)
        loss, targets, tokens = 0.0, 0, 0
        size = math.ceil(len(features) / settings.accumulation_steps)
        for start in range(0, len(features), size):
            batch = self._collate(features[start : start + size])
            part = self._loss(self._logits(batch), batch)
            part.total.backward()  # type: ignore[no-untyped-call]
            loss, targets, tokens = (
                loss + float(part.total.detach()),
                targets + part.targets,
                tokens + batch.tokens,
            )
        self._divide_gradients(max(1, targets))
        norm = optim.clip(self.parameters, settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step, self.progress.tokens = self.progress.step + 1, self.progress.tokens + tokens
        mean = loss / max(1, targets)
        if not math.isfinite(mean) or not math.isfinite(norm):
            raise TrainingError(
                f"the loss is {mean} (gradient norm {norm}) at step {self.progress.step}: "
                f"try a lower learning_rate than {self.peak_rate:g}, or a longer warm-up"
            )
        seconds = time.perf_counter() - started
        return {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "loss": mean,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": tokens / seconds,
        }

    def _loss(self, logits: torch.Tensor, batch: Batch) -> Loss:
        """The labels' loss, and the teacher's where there is one."""
        hard, teacher = self.task.loss(logits, batch), self.settings.teacher
        if teacher is None:
            return hard
        return blend(self.task.soft_loss(logits, batch, teacher.temperature), hard, teacher.alpha)

    def _divide_gradients(self, targets: int) -> None:
        """Turn gradients of a sum into those of the mean over the whole step's targets."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        torch._foreach_div_(gradients, float(targets))

    def _collate(self, features: Sequence[Feature]) -> Batch:
        return collate(features, self.task.tokenizer.pad_id, self.device)

    def _logits(self, batch: Batch) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            logits: torch.Tensor = self.trained(batch.input_ids, batch.segment_ids, batch.attention_mask)
        return logits.float()

    def predict(self, encodings: Sequence[Encoding]) -> list[Floats]:
        """Return the logits of each encoding, in order, in float32 whatever the training precision."""
        return predict(self.trained, encodings, self.task.tokenizer.pad_id, self.device)


def fingerprint(settings: FinetuneSettings) -> dict[str, Any]:
    """Return the settings that a run cannot change and still be the same run.

    It can be made longer or shorter: the schedule then leads to the new end. What its checkpoints are compared by
    stays: a score of other data, or another score, says nothing of which is best.
    """
    places = {"config", "output_dir", "test", "threads", "resume"}
    ends = {"epochs", "max_steps", "patience"}
    rhythm = {"eval_every_steps", "save_every_steps"}
    values: dict[str, Any] = settings.model_dump(mode="json", exclude=places | ends | rhythm)
    return values
