"""What every pretraining objective is to the loop: a model that is saved, and losses of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.nn.heads import BertHead
from bert.nn.losses import Loss
from training.pretraining.batch import PretrainBatch


class Objective(nn.Module, ABC):
    """Losses of a batch. R rows of T tokens, M masked positions, N examples, H width, V vocabulary."""

    architecture: str
    """What `config.json` says of the saved model."""

    model: BertHead
    """What is saved as the checkpoint; what else is trained lies beside it in this module."""

    weights: dict[str, float]
    """How the losses add up: the sum of weight * total / targets, with the targets of the whole step."""

    @abstractmethod
    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return over how many targets each loss of `weights` is summed; needs no pass through the model."""

    @abstractmethod
    def losses(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return each loss of `weights`, summed over its targets."""

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `losses`: torch's wrappers for many processes call this one."""
        return self.losses(batch)

    def masked_logits(self, batch: PretrainBatch) -> Tensor | None:
        """Return logits (M, V) of what stood at the masked positions; None from a model that does not tell."""
        return None

    def logits(self, batch: PretrainBatch) -> tuple[Tensor | None, Tensor | None]:
        """Return `masked_logits` and logits (N, 2) of the pair labels, of one pass; None for a head that is not there."""
        return self.masked_logits(batch), None

    def save_beside(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write, below the checkpoint folder, what else is worth keeping: nothing, as a rule.

        `weights` are those of this module by name, gathered from wherever they are spread.
        """


def encode(
    model: BertHead, batch: PretrainBatch, ids: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Return hidden states (R, T, H) of the batch, or of other ids (R, T) or another mask in its place."""
    hidden: Tensor = model.bert(
        batch.input_ids if ids is None else ids,
        batch.segment_ids,
        batch.attention_mask if mask is None else mask,
        batch.position_ids,
    )
    return hidden


def select(hidden: Tensor, flat: Tensor) -> Tensor:
    """Return the hidden states (..., H) at flat indices (...) of (R, T, H).

    As an embedding, whose gradient is summed in a fixed order on a GPU too; indexing's is not.
    """
    return F.embedding(flat, hidden.flatten(0, 1))


def cross_entropy(logits: Tensor, labels: Tensor, targets: int) -> Loss:
    """Compare logits (P, K) with labels (P,), of which `targets` are not IGNORED; the device is not asked how many."""
    return Loss(F.cross_entropy(logits.float(), labels, reduction="sum"), targets)


def weighted(objective: Objective, losses: dict[str, Loss]) -> Tensor:
    """Return what is minimised over one batch that is a step of its own."""
    return torch.stack([objective.weights[name] * loss.mean for name, loss in losses.items()]).sum()
