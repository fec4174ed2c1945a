"""The generator of replaced-token detection: its shape, and the embeddings that it shares with the discriminator.

V vocabulary, E width of the embeddings, G width of the generator.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.heads import BertForMaskedLM, BertHead
from training.pretraining.settings import Sharing


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
