"""The recipes' models and losses, made of transformers' classes.

B examples, T tokens, M predicted positions, H width, V vocabulary.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.papers.inputs import Inputs

REST = "rest.safetensors"
"""File beside a checkpoint with the weights that its format has no place for."""

TEACHER = "teacher"
"""Folder beside a checkpoint with its teacher."""


class Reference(nn.Module, ABC):
    """A recipe's model, and the loss of a batch."""

    model: Any

    @abstractmethod
    def loss(self, batch: Inputs) -> Tensor:
        """Return the loss to minimise."""

    def clipped_together(self) -> list[list[nn.Parameter]]:
        """Return groups of parameters whose gradients are clipped by their common norm: by default one of all."""
        return [list(self.parameters())]

    def read(self, batch: Inputs, ids: Tensor | None = None) -> dict[str, Tensor]:
        """Return the arguments of a transformers model."""
        return {
            "input_ids": batch.ids if ids is None else ids,
            "attention_mask": batch.mask,
            "token_type_ids": batch.segments,
        }


class MaskedWords(Reference):
    """BertForMaskedLM, or a relative of it, and its own loss."""

    kind: Any = transformers.BertForMaskedLM

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint that both sides start from."""
        super().__init__()
        self.model = self.kind.from_pretrained(folder)

    def loss(self, batch: Inputs) -> Tensor:
        """Return the mean over masked positions."""
        loss: Tensor = self.model(**self.read(batch), labels=batch.labels).loss
        return loss


class MaskedWordsAndPairs(Reference):
    """BertForPreTraining and its own loss; the second label may also be that of sentence order."""

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint."""
        super().__init__()
        self.model = transformers.BertForPreTraining.from_pretrained(folder)

    def loss(self, batch: Inputs) -> Tensor:
        """Return the mean over masked positions plus the mean over pairs."""
        given = {"labels": batch.labels, "next_sentence_label": batch.pair_labels}
        loss: Tensor = self.model(**self.read(batch), **given).loss
        return loss


class LeftToRight(Reference):
    """BertLMHeadModel as a decoder, which masks what is to the right and shifts the labels itself."""

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint."""
        super().__init__()
        self.model = transformers.BertLMHeadModel.from_pretrained(folder, is_decoder=True, use_cache=False)

    def loss(self, batch: Inputs) -> Tensor:
        """Return the mean over all tokens but each example's first."""
        given = self.read(batch, batch.original)
        loss: Tensor = self.model(**given, labels=batch.causal_labels).loss
        return loss


class SpanBoundary(MaskedWords):
    """MLM plus the boundary objective, after facebookresearch/SpanBERT (pair_bert.py, spanbert_loss.py)."""

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint, and the boundary head from the rest."""
        super().__init__(folder)
        rest = load_file(folder / REST)
        width = self.model.config.hidden_size
        self.places = nn.Embedding(*rest["boundary.position_embeddings.weight"].shape)
        self.places.load_state_dict({"weight": rest["boundary.position_embeddings.weight"]})
        self.layers = nn.Sequential(
            nn.Linear(2 * width + 200, width), nn.GELU(), nn.LayerNorm(width, 1e-12),
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, 1e-12),
        )  # fmt: skip
        for number, name in ((0, "linear1"), (2, "layer_norm1"), (3, "linear2"), (5, "layer_norm2")):
            own = {key: rest[f"boundary.{name}.{key}"] for key in ("weight", "bias")}
            self.layers[number].load_state_dict(own)
        self.bias = nn.Parameter(rest["boundary.bias"])

    def loss(self, batch: Inputs) -> Tensor:
        """Return the mean of both losses over the masked positions."""
        bert = self.model
        hidden = bert.bert(**self.read(batch)).last_hidden_state
        words = F.cross_entropy(bert.cls(hidden).flatten(0, 1), batch.labels.flatten())
        found = []
        for row, spans in enumerate(batch.spans):
            for at, first, last in spans:
                # Words at the edge of the text have no border on one side.
                if batch.edges[row, [first - 1, last + 1]].any() or at - first >= self.places.num_embeddings:
                    continue
                found.append((row, first - 1, last + 1, at - first, int(batch.labels[row, at])))
        rows, left, right, place, label = torch.tensor(found).T
        inner = torch.cat([hidden[rows, left], hidden[rows, right], self.places(place)], -1)
        logits = self.layers(inner) @ bert.bert.embeddings.word_embeddings.weight.T + self.bias
        return words + F.cross_entropy(logits, label)
