"""Base of the pretraining objectives: a model to save, and the losses of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.config import BertConfig
from bert.nn.attention import Mask
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertHead
from bert.nn.losses import Loss, cross_entropy
from training.pretraining.pretrain_batch import PretrainBatch


class Objective(nn.Module, ABC):
    """Losses of a batch. R rows of T tokens, M masked positions, N examples, H width, V vocabulary."""

    architecture: str
    """Architecture that `config.json` names for the saved model."""

    model: BertHead
    """Model that is saved as the checkpoint; other trained parts lie beside it in this module."""

    weights: dict[str, float]
    """Name → weight of each loss. A step minimises the sum of weight * total / targets, over all its targets."""

    predicts_all = False
    """True for a loss over the vocabulary at every token, and not at masked positions only."""

    frozen: tuple[nn.Module, ...] = ()
    """Models that take part in the loss and are not trained; in a tuple they are no submodules, saved or sent."""

    fused: ClassVar[tuple[str, ...]] = ("word_loss",)
    """Methods of a head with its loss, which `compile_heads` compiles; how many positions they get may change."""

    def compile_heads(self, **options: Any) -> None:
        """Compile each head with its loss, for any number of positions; `options` are those of torch.compile."""
        for name in self.fused:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=True, **options))

    def word_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the summed cross entropy of words (P,) that the MLM head is to tell from hidden states (P, H)."""
        return cross_entropy(self.model.score(states), labels, count=len(labels)).total

    @abstractmethod
    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the number of targets of each loss of `weights`, without a pass through the model."""

    @abstractmethod
    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return each loss of `weights`, summed over its targets."""

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return each loss of `weights`, summed over its targets, with their number."""
        targets = self.targets(batch)
        return {name: Loss(total, targets[name]) for name, total in self.totals(batch).items()}

    def logits(self, batch: PretrainBatch) -> tuple[Tensor | None, Tensor | None]:
        """Return logits (M, V) of the masked words and (N, 2) of the pair labels, from one pass; None for a missing head."""
        return None, None

    clipped_apart: tuple[str, ...] = ()
    """Beginnings of names of parameters whose gradients have a norm of their own for `max_grad_norm`."""

    generator_shape: BertConfig | None = None
    """Shape of another model that is trained and saved beside this one; None without one."""

    def load_base(self, folder: Path) -> list[str]:
        """Fill the model from a checkpoint; return the names of what the checkpoint lacks."""
        return load_into(self.model, folder)

    def model_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the saved model's weights by its own names, of all parameters of this module by name, whole."""
        prefix = "model."
        return {
            name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)
        }

    def save_beside(
        self, folder: Path, weights: Mapping[str, Tensor], extra: Mapping[str, object]
    ) -> list[Path]:
        """Write other models of this objective below the checkpoint folder, and return their folders.

        `weights` are all parameters of this module by name, whole; `extra` goes into the configs.
        """
        return []


def encode(model: BertHead, batch: PretrainBatch, ids: Tensor | None = None, mask: Mask = None) -> Tensor:
    """Return hidden states (R, T, H) of the batch, with other ids (R, T) or another mask if given."""
    hidden: Tensor = model.bert(
        batch.input_ids if ids is None else ids,
        batch.segment_ids,
        batch.attention_mask if mask is None else mask,
        batch.position_ids,
    )
    return hidden


def select(hidden: Tensor, flat: Tensor) -> Tensor:
    """Return the hidden states (..., H) at flat indices (...) of (R, T, H).

    An embedding sums its gradient in a fixed order on a GPU too; indexing does not.
    """
    return F.embedding(flat, hidden.flatten(0, 1))
