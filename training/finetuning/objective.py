"""What a fine-tuning trains: the model of a task with its loss, and a teacher's where there is one."""

from typing import ClassVar

import torch
from torch import nn

from bert.nn.losses import Loss, blend
from training.settings import TeacherSettings
from training.tasks.base import FeatureBatch, FinetuneTask


class TaskObjective(nn.Module):
    """The one loss of a task. Its targets are counted in the forward pass."""

    weights: ClassVar = {"loss": 1.0}

    def __init__(self, trained: nn.Module, task: FinetuneTask, teacher: TeacherSettings | None) -> None:
        """Keep the model that is trained, or the adapter around it."""
        super().__init__()
        self.trained, self.task, self.teacher = trained, task, teacher

    def targets(self, part: FeatureBatch) -> dict[str, int]:
        """Return nothing: the loss tells."""
        return {}

    def forward(self, batch: FeatureBatch) -> dict[str, Loss]:
        """Return the summed loss of a batch, in float32 whatever the precision of the model's products."""
        logits = self.trained(batch.input_ids, batch.segment_ids, batch.attention_mask).float()
        with torch.autocast(logits.device.type, enabled=False):
            hard = self.task.loss(logits, batch)
            if self.teacher is None:
                return {"loss": hard}
            soft = self.task.soft_loss(logits, batch, self.teacher.temperature)
            return {"loss": blend(soft, hard, self.teacher.alpha)}
