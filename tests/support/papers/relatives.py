"""The recipes of BERT's relatives, made of their own classes of transformers.

B examples, T tokens, M predicted positions, H width, V vocabulary.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.papers.inputs import Inputs
from tests.support.papers.models import REST, TEACHER, MaskedWords, Reference

GENERATOR = "generator"
"""Folder of a generator in that of its discriminator."""
DETECTION_WEIGHT = 50.0


class _WithoutSegments(Reference):
    """A model that reads no segments."""

    def read(self, batch: Inputs, ids: Tensor | None = None) -> dict[str, Tensor]:
        """Return the arguments of a transformers model."""
        return {"input_ids": batch.ids if ids is None else ids, "attention_mask": batch.mask}


class RobertaWords(_WithoutSegments, MaskedWords):
    """RobertaForMaskedLM and its own loss; fairseq has no segments and zeros for the positions of padding."""

    kind = transformers.RobertaForMaskedLM

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint."""
        super().__init__(folder)
        embeddings, pad_id = self.model.roberta.embeddings, self.model.config.pad_token_id
        embeddings.token_type_embeddings.requires_grad_(False)
        nn.init.zeros_(embeddings.position_embeddings.weight.detach()[: pad_id + 1])


class ModernWords(_WithoutSegments, MaskedWords):
    """ModernBertForMaskedLM and its own loss."""

    kind = transformers.ModernBertForMaskedLM


class AlbertWordsAndOrder(Reference):
    """AlbertForPreTraining and its own loss; google-research/albert has no dropout before the order's layer."""

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint."""
        super().__init__()
        self.model = transformers.AlbertForPreTraining.from_pretrained(folder, classifier_dropout_prob=0.0)

    def loss(self, batch: Inputs) -> Tensor:
        """Return the mean over masked positions plus the mean over pairs."""
        given = {"labels": batch.labels, "sentence_order_label": batch.pair_labels}
        loss: Tensor = self.model(**self.read(batch), **given).loss
        return loss


class Distilled(_WithoutSegments):
    """DistilBertForMaskedLM beside its teacher, a BertForMaskedLM (huggingface's distiller.py)."""

    temperature, soft, hard, direction = 2.0, 5.0, 2.0, 1.0

    def __init__(self, folder: Path) -> None:
        """Load student and teacher."""
        super().__init__()
        self.model = transformers.DistilBertForMaskedLM.from_pretrained(folder)
        found = transformers.BertForMaskedLM.from_pretrained(folder / TEACHER)
        self.teachers = (
            found.requires_grad_(False).eval(),
        )  # in a tuple: not trained, and never in training mode

    def loss(self, batch: Inputs) -> Tensor:
        """Return 5 · soft + 2 · hard + 1 · direction; soft and direction over all real tokens."""
        ours = self.model(**self.read(batch), labels=batch.labels, output_hidden_states=True)
        with torch.no_grad():
            theirs = self.teachers[0](**Reference.read(self, batch), output_hidden_states=True)
        real = batch.mask.bool()
        soft = F.kl_div(
            F.log_softmax(ours.logits[real] / self.temperature, -1),
            F.softmax(theirs.logits[real] / self.temperature, -1),
            reduction="batchmean",
        )
        states = ours.hidden_states[-1][real], theirs.hidden_states[-1][real]
        direction = F.cosine_embedding_loss(*states, torch.ones(len(states[0])))
        loss: Tensor = (
            self.soft * self.temperature**2 * soft + self.hard * ours.loss + self.direction * direction
        )
        return loss


class Detection(Reference):
    """A generator that fills each mask with its likeliest piece, and a model that tells which pieces were replaced."""

    generator: Any

    def loss(self, batch: Inputs) -> Tensor:
        """Return the generator's loss plus 50 times the mean loss of all real tokens."""
        filled = self.generator(**self.read(batch), labels=batch.labels)
        at = batch.labels >= 0
        ids = batch.original.clone()
        ids[at] = filled.logits[at].argmax(-1)
        detected = self.detect(batch, ids)[batch.mask.bool()]
        replaced = (ids != batch.original)[batch.mask.bool()]
        loss: Tensor = filled.loss + DETECTION_WEIGHT * F.binary_cross_entropy_with_logits(
            detected, replaced.float()
        )
        return loss

    @abstractmethod
    def detect(self, batch: Inputs, ids: Tensor) -> Tensor:
        """Return logits (B, T), above 0 where a piece looks replaced."""


class Electra(Detection):
    """ElectraForPreTraining and ElectraForMaskedLM around one set of embeddings."""

    def __init__(self, folder: Path) -> None:
        """Load both checkpoints, and give both models the discriminator's embeddings."""
        super().__init__()
        self.model = transformers.ElectraForPreTraining.from_pretrained(folder)
        self.generator = transformers.ElectraForMaskedLM.from_pretrained(folder / GENERATOR)
        self.generator.electra.embeddings = self.model.electra.embeddings
        self.generator.generator_lm_head.weight = self.model.electra.embeddings.word_embeddings.weight

    def detect(self, batch: Inputs, ids: Tensor) -> Tensor:
        """Return logits (B, T)."""
        logits: Tensor = self.model(**self.read(batch, ids)).logits
        return logits


class Deberta(_WithoutSegments, Detection):
    """DebertaV2Model with a detecting head, and DebertaV2ForMaskedLM, whose embeddings it reads plus an offset.

    After microsoft/DeBERTa: the offset alone learns from the detection, the generator's table from its words.
    """

    def __init__(self, folder: Path) -> None:
        """Load both checkpoints, and the head from the rest or the checkpoint."""
        super().__init__()
        self.model = transformers.DebertaV2Model.from_pretrained(folder)
        self.generator = transformers.DebertaV2ForMaskedLM.from_pretrained(folder / GENERATOR)
        config = self.model.config
        width = config.hidden_size
        weights = load_file(folder / "model.safetensors") | load_file(folder / REST)
        self.norm, self.dense = nn.LayerNorm(width, config.layer_norm_eps), nn.Linear(width, width)
        self.classifier = nn.Linear(width, 1)
        for name, layer in (("LayerNorm", self.norm), ("dense", self.dense), ("classifier", self.classifier)):
            layer.load_state_dict(
                {key: weights[f"mask_predictions.{name}.{key}"] for key in ("weight", "bias")}
            )
        self.offset = nn.Parameter(
            self.model.embeddings.word_embeddings.weight.detach() - self.table.detach()
        )
        del self.model.embeddings.word_embeddings  # it is given embeddings

    def clipped_together(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each model: its published training has an optimiser for each."""
        theirs = list(self.generator.parameters())
        known = {id(parameter) for parameter in theirs}
        return [theirs, [parameter for parameter in self.parameters() if id(parameter) not in known]]

    @property
    def table(self) -> Tensor:
        """The generator's word embeddings (V, H)."""
        table: Tensor = self.generator.deberta.embeddings.word_embeddings.weight
        return table

    def detect(self, batch: Inputs, ids: Tensor) -> Tensor:
        """Return logits (B, T): the first token's state is added to each token's before the norm."""
        words = F.embedding(ids, self.table.detach() + self.offset)
        hidden = self.model(inputs_embeds=words, attention_mask=batch.mask).last_hidden_state
        inner = F.gelu(self.dense(self.norm(hidden[:, :1] + hidden)))
        logits: Tensor = self.classifier(inner)[..., 0]
        return logits
