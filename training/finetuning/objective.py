"""Module that a fine-tuning trains: the model of a task with its loss, and a teacher's where there is one."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from bert.nn.losses import Loss, blend
from training.settings import TeacherSettings
from training.tasks.base import FeatureBatch, FinetuneTask


class TaskObjective(nn.Module):
    """The one loss of a task. Its targets are counted in the forward pass."""

    weights: ClassVar = {"loss": 1.0}

    def __init__(
        self, trained: nn.Module, task: FinetuneTask, teacher: TeacherSettings | None, r_drop: float = 0.0
    ) -> None:
        """Keep the model that is trained, or the adapter around it."""
        super().__init__()
        self.trained, self.task, self.teacher, self.r_drop = trained, task, teacher, r_drop

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
        logits: Tensor = self.trained(batch.input_ids, batch.segment_ids, batch.attention_mask)
        return logits.float()

    def _loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare with the labels, and with a teacher where there is one."""
        with torch.autocast(logits.device.type, enabled=False):
            hard = self.task.loss(logits, batch)
            if self.teacher is None:
                return hard
            soft = self.task.soft_loss(logits, batch, self.teacher.temperature)
            return blend(soft, hard, self.teacher.alpha)
