"""ELECTRA: a small generator replaces the masked words, and the model detects the replacements.

R rows of T tokens, M masked positions, V vocabulary, E width of the embeddings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.checkpoint.tensor_names import DECODER
from bert.checkpoint.weight_files import has_weights
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.checkpoint import load_into, save_weights
from bert.nn.heads import BertForMaskedLM, BertHead
from bert.nn.losses import cross_entropy
from bert.nn.pretraining_heads import BertForReplacedTokenDetection, DiscriminatorPredictions
from training.pretraining.objectives.base import Objective, encode, select
from training.pretraining.pretrain_batch import PretrainBatch
from training.pretraining.settings import ReplacedTokenSettings, Sharing

GENERATOR = "generator"
"""Folder of the generator in that of the model."""


class ReplacedToken(Objective):
    """Replaced-token detection (Clark et al. 2020, arXiv 2003.10555; He et al. 2021, arXiv 2111.09543).

    The saved model is the discriminator: an ELECTRA, a DeBERTa, or the body of another family. Its generator lies beside
    it in transformers' format.
    """

    model: BertForReplacedTokenDetection
    fused: ClassVar = ("proposed", "detection_loss")

    def __init__(
        self,
        config: BertConfig,
        settings: ReplacedTokenSettings | None = None,
        generator: BertConfig | None = None,
    ) -> None:
        """Make both models with fresh weights; `generator` is the shape of one that the settings do not decide.

        Raises ConfigError for a generator that does not fit the model.
        """
        super().__init__()
        settings = settings or ReplacedTokenSettings()
        shared = settings.embedding_sharing != "none"
        self.generator_shape = generator or generator_config(
            config, settings.generator_width, settings.generator_depth, shared=shared
        )
        if self.generator_shape.vocab_size != config.vocab_size:
            raise ConfigError(
                f"the generator has {self.generator_shape.vocab_size} pieces and the model {config.vocab_size}: "
                "they do not belong together"
            )
        self.model = BertForReplacedTokenDetection(config)
        self.generator = BertForMaskedLM(self.generator_shape)
        self.temperature = settings.temperature
        self.weights = {"mlm": 1.0, "replaced_token": settings.discriminator_weight}
        # Of the families with a class for the head in transformers, ELECTRA is the only one.
        is_electra = config.family.discriminator == "discriminator_predictions"
        self.architecture = "BertForPreTraining" if is_electra else "BertModel"
        if is_electra:
            _initialize_as_electra(self)
        if settings.embedding_sharing != "all":  # microsoft/DeBERTa has two optimisers
            self.clipped_apart = ("generator.",)
        share(self.model, self.generator, settings.embedding_sharing)

    def logits(self, batch: PretrainBatch) -> tuple[Tensor, None]:
        """Return the generator's logits (M, V) of the words."""
        return self.generator.score(select(encode(self.generator, batch), batch.masked)), None

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of tokens."""
        return {"mlm": len(batch.labels), "replaced_token": batch.tokens}

    def proposed(self, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the generator's logits (M, V) of its hidden states (M, H), and their summed loss."""
        logits = self.generator.score(states)
        return logits, cross_entropy(logits, labels, count=len(labels)).total

    def detection_loss(self, hidden: Tensor, positions: Tensor, replaced: Tensor, real: Tensor) -> Tensor:
        """Return the summed loss of the discriminator's hidden states (R, T, H) over real tokens."""
        logits = self.model.score(hidden, positions)
        return F.binary_cross_entropy_with_logits(
            logits.float(), replaced.float(), weight=real.float(), reduction="sum"
        )

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return `mlm`, the generator's over masked positions, and `replaced_token`, over all tokens."""
        states = select(encode(self.generator, batch), batch.masked)
        proposals, words = self.proposed(states, batch.labels)
        ids, replaced = replace_tokens(batch, proposals, self.temperature)
        hidden = encode(self.model, batch, ids)
        detected = self.detection_loss(hidden, batch.position_ids, replaced, batch.real)
        return {"mlm": words, "replaced_token": detected}

    def load_base(self, folder: Path) -> list[str]:
        """Fill both models from a checkpoint with its generator beside it; return the names that stay fresh.

        Without a generator, one that shares embeddings starts from the model's.
        """
        beside = folder / GENERATOR
        has_generator = has_weights(beside)
        fresh = load_into(self.generator, beside) if has_generator else [""]
        fresh = [f"{GENERATOR}/{name}" for name in fresh]
        fresh += super().load_base(folder)  # after the generator: embeddings that are one are the model's
        rebase(self.model, keep_origin=has_generator)
        return fresh

    def model_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the discriminator's weights, with whole embeddings in place of offsets."""
        found = super().model_weights(weights)
        return found | {name: found[name] + weights[f"generator.{name}"] for name, _ in offsets(self.model)}

    def save_beside(
        self, folder: Path, weights: Mapping[str, Tensor], extra: Mapping[str, object]
    ) -> list[Path]:
        """Write the generator to the folder `generator`, as the masked language model of its family."""
        named = {
            name: weights[own if (own := f"generator.{name}") in weights else f"model.{name}"]
            for name in self.generator.state_dict()
            if name != DECODER
        }
        save_weights(named, self.generator.config, folder / GENERATOR, "BertForMaskedLM", extra)
        return [folder / GENERATOR]


def _initialize_as_electra(objective: ReplacedToken) -> None:
    """Draw the layers that google-research/electra leaves to TensorFlow's default, Glorot's uniform numbers."""
    head = objective.model.get_submodule(objective.model.own_head)
    assert isinstance(head, DiscriminatorPredictions)
    for layer in (
        head.dense_prediction,
        getattr(objective.model.bert, "embeddings_project", None),
        getattr(objective.generator.bert, "embeddings_project", None),
    ):
        if layer is not None:
            nn.init.xavier_uniform_(layer.weight)


@torch.no_grad()
def replace_tokens(
    batch: PretrainBatch, proposals: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return ids (R, T) with a piece drawn from logits (M, V) at each masked position, and True where it differs.

    A drawn piece that equals the original counts as original. No gradient goes through the draw.
    """
    drawn = sample(proposals if temperature == 1.0 else proposals.float() / temperature)
    ids = batch.original_ids.flatten().index_copy(0, batch.masked, drawn).view_as(batch.original_ids)
    return ids, ids != batch.original_ids


def sample(logits: Tensor) -> Tensor:
    """Draw a class (M,) from logits (M, K): the largest after adding Gumbel noise, which is -log of an exponential."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return (logits.float() - noise.log()).argmax(-1)


def generator_config(
    config: BertConfig, width: float = 0.25, depth: float = 1.0, *, shared: bool = True
) -> BertConfig:
    """Return the shape of a generator with `width` of the discriminator's heads and `depth` of its layers.

    Heads have the discriminator's size. Next to a BERT, or another family with BERT's body, it is an ELECTRA.
    Raises ConfigError where a narrower model of the family cannot share the embeddings (`shared`).
    """
    heads = max(1, round(config.num_attention_heads * width))
    layers, narrow = max(1, round(config.num_hidden_layers * depth)), heads * config.head_size
    is_electra = config.is_plain_body and not config.family.discriminator
    shape = replace(config, model_type="electra") if is_electra else config
    if "embedding_size" not in shape.family.own_keys and narrow != config.hidden_size and shared:
        raise ConfigError(
            f"a generator {narrow} wide cannot share embeddings {config.hidden_size} wide in a {config.model_type} model: "
            "set replaced_token.generator_width to 1, or embedding_sharing to none"
        )
    return replace(
        shape,
        body=shape.body.shortened(layers, keeps_width=narrow == config.embedding_width),
        hidden_size=narrow,
        embedding_size=config.embedding_width if "embedding_size" in shape.family.own_keys else 0,
        num_attention_heads=heads,
        intermediate_size=max(1, config.intermediate_size * heads // config.num_attention_heads),
        num_hidden_layers=layers,
        num_hidden_groups=min(config.num_hidden_groups, layers),
    )


class OffsetEmbedding(nn.Embedding):
    """Table (V, E) of offsets from another table, whose own vectors get no gradient from here.

    Gradient-disentangled sharing: E_D = sg(E_G) + E_Δ (He et al. 2021, arXiv 2111.09543, section 3.3).
    """

    def __init__(self, origin: nn.Embedding) -> None:
        """Start without an offset."""
        super().__init__(origin.num_embeddings, origin.embedding_dim, padding_idx=origin.padding_idx)
        nn.init.zeros_(self.weight)
        self._origin = (origin,)  # in a tuple it is no submodule: its weights are the generator's

    @property
    def origin(self) -> nn.Embedding:
        """Table that the offsets are added to."""
        return self._origin[0]

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids (...) to (..., E)."""
        return F.embedding(ids, self.origin.weight.detach()) + super().forward(ids)


def share(model: BertHead, generator: BertForMaskedLM, sharing: Sharing) -> None:
    """Make the generator's embeddings those of the model, or the model's those of the generator and an offset.

    `all` shares the tables and, where it is as wide, the norm, as google-research/electra does;
    `gradient_disentangled` each table. Raises ConfigError for embeddings of other shapes.
    """
    if sharing == "none":
        return
    ours, theirs = model.bert.embeddings, generator.bert.embeddings
    for name, part in list(ours.named_children()):
        other = theirs.get_submodule(name)
        if _shapes(part) != _shapes(other):
            if isinstance(part, nn.Embedding):
                raise ConfigError(
                    f"the generator's {name} {_shapes(other)} and the model's {_shapes(part)} cannot be shared"
                )
        elif sharing == "all":
            theirs.add_module(name, part)
        elif isinstance(part, nn.Embedding) and part.weight.requires_grad:
            assert isinstance(other, nn.Embedding)
            ours.add_module(name, OffsetEmbedding(other))
    generator.cls.predictions.decoder.weight = generator.bert.embeddings.word_embeddings.weight


def offsets(model: BertHead) -> Iterator[tuple[str, OffsetEmbedding]]:
    """Yield the tables of a model that are offsets from the generator's, by the names of their weights."""
    for name, part in model.bert.embeddings.named_children():
        if isinstance(part, OffsetEmbedding):
            yield f"bert.embeddings.{name}.weight", part


@torch.no_grad()
def rebase(model: BertHead, *, keep_origin: bool) -> None:
    """Turn tables that were read into a model's offsets into offsets.

    Without `keep_origin` the generator's tables become the model's, and the offsets zero.
    """
    for _, table in offsets(model):
        if not keep_origin:
            table.origin.weight.copy_(table.weight)
        table.weight.sub_(table.origin.weight)


def _shapes(part: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in part.parameters()]
