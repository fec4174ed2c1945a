"""ELECTRA: a small generator replaces the masked words, and the model detects the replacements."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bert.config import BertConfig
from bert.nn.checkpoint import save_weights
from bert.nn.encoder import BertEmbeddings
from bert.nn.losses import Loss
from bert.nn.pretraining_heads import BertForReplacedTokenDetection, ElectraGenerator, generator_config
from training.pretraining.batch import PretrainBatch
from training.pretraining.objectives.base import Objective, cross_entropy, encode, select

EMBEDDINGS = "bert.embeddings."


class ReplacedToken(Objective):
    """Replaced-token detection (Clark et al. 2020, arXiv 2003.10555).

    Both models share one table of embeddings, positions and segments included, as google-research/electra does.
    The saved model is the discriminator, a plain BERT; its generator lies beside it in transformers' format.
    """

    architecture = "BertModel"

    def __init__(
        self, config: BertConfig, generator_width: float = 0.25, discriminator_weight: float = 50.0
    ) -> None:
        """Make both models with fresh weights; `generator_width` is a share of the discriminator's width."""
        super().__init__()
        self.model = BertForReplacedTokenDetection(config)
        embeddings = self.model.bert.embeddings
        assert isinstance(embeddings, BertEmbeddings)
        self.generator = ElectraGenerator(generator_config(config, generator_width), embeddings)
        self.weights = {"mlm": 1.0, "replaced_token": discriminator_weight}

    def masked_logits(self, batch: PretrainBatch) -> Tensor:
        """Return the generator's logits (M, V)."""
        hidden = self.generator.electra(
            batch.input_ids, batch.segment_ids, batch.attention_mask, batch.position_ids
        )
        return self.generator.score(select(hidden, batch.masked))

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of tokens."""
        return {"mlm": len(batch.labels), "replaced_token": batch.tokens}

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm`, the generator's over masked positions, and `replaced_token`, over all tokens."""
        proposals = self.masked_logits(batch)
        ids, replaced = replace_tokens(batch, proposals)
        logits = self.model.score(encode(self.model, batch, ids))
        total = F.binary_cross_entropy_with_logits(
            logits.float(), replaced.float(), weight=batch.real.float(), reduction="sum"
        )
        return {
            "mlm": cross_entropy(proposals, batch.labels, len(batch.labels)),
            "replaced_token": Loss(total, batch.tokens),
        }

    def save_beside(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the generator to the folder `generator`, as transformers' ElectraForMaskedLM."""
        own, shared = "generator.", f"model.{EMBEDDINGS}"
        named = {
            name.removeprefix(own): tensor
            for name, tensor in weights.items()
            if name.startswith(own) and name != "generator.generator_lm_head.weight"
        }
        named |= {
            f"electra.embeddings.{name.removeprefix(shared)}": tensor
            for name, tensor in weights.items()
            if name.startswith(shared)
        }
        extra = {"model_type": "electra", "embedding_size": self.model.config.hidden_size}
        save_weights(named, self.generator.config, folder / "generator", "ElectraForMaskedLM", extra)


@torch.no_grad()
def replace_tokens(batch: PretrainBatch, proposals: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids (R, T) with a piece drawn from logits (M, V) at each masked position, and True where it differs.

    A drawn piece that equals the original counts as original. No gradient goes through the draw.
    """
    drawn = sample(proposals)
    ids = batch.original_ids.flatten().index_copy(0, batch.masked, drawn).view_as(batch.original_ids)
    return ids, ids != batch.original_ids


def sample(logits: Tensor) -> Tensor:
    """Draw a class (M,) from logits (M, K): the largest after adding Gumbel noise, which is -log of an exponential."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return (logits.float() - noise.log()).argmax(-1)
