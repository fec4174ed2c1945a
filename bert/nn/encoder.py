"""BERT's encoder, read top to bottom, with what its relatives add: narrow embeddings, shared layers, relative positions.

B texts, T tokens, E width of the embeddings, H width, A heads, D head size, L layers.

Source: Devlin et al. 2018 (arXiv 1810.04805) and google-research/bert `modeling.py`. Module names are the ones that
checkpoints on the hub have, so that `state_dict` is the file format.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert.config import BertConfig
from bert.nn.activation import activation
from bert.nn.attention import BertSelfAttention, Mask, Seen, TextRows, score_dtype, visible
from bert.nn.disentangled import (
    DisentangledSelfAttention,
    Distances,
    NeighbourConvolution,
    distances,
    freeze_key_biases,
)
from bert.relatives.relative_positions import bucket_table

LayerSeen = Seen | Distances
"""Second input of every layer: what its attention sees, with vectors of distances in DeBERTa."""


class BertEmbeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the three tables."""
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.has_positions = config.position_biased_input
        if self.has_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if config.widens_embeddings:
            self.embed_proj = nn.Linear(width, config.hidden_size, bias=False)
        normalised = config.hidden_size if config.widens_embeddings else width
        self.LayerNorm = nn.LayerNorm(normalised, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embed ids (B, T) to (B, T, E), or H where they are widened before the norm."""
        summed = self.word_embeddings(input_ids) + self.token_type_embeddings(segment_ids)
        if self.has_positions:
            summed = summed + self.position_embeddings(position_ids)
        if hasattr(self, "embed_proj"):
            summed = self.embed_proj(summed)
        embedded: Tensor = self.dropout(self.LayerNorm(summed))
        return embedded


class BertResidual(nn.Module):
    """Project, drop out, add to what went in, normalise: the end of both halves of a layer."""

    def __init__(self, config: BertConfig, inner_size: int, *, drops: bool = True) -> None:
        """Shape the projection, `inner_size` to H; `drops` is False for a body without dropout here."""
        super().__init__()
        self.dense = nn.Linear(inner_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if drops else 0.0)

    def forward(self, inner: Tensor, residual: Tensor) -> Tensor:
        """Add inner (B, T, inner_size), projected, to residual (B, T, H)."""
        normalised: Tensor = self.LayerNorm(residual + self.dropout(self.dense(inner)))
        return normalised


class BertAttention(nn.Module):
    """First half of a layer: attention and its residual."""

    def __init__(self, config: BertConfig) -> None:
        """Name the two parts as checkpoints do."""
        super().__init__()
        self.self = DisentangledSelfAttention(config) if config.pos_att_type else BertSelfAttention(config)
        self.output = BertResidual(config, config.hidden_size, drops=config.family.drops_attended)

    def forward(self, hidden: Tensor, seen: LayerSeen) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended: Tensor = self.output(self.self(hidden, seen), hidden)
        return attended


class BertIntermediate(nn.Module):
    """Widening half of the feed-forward network."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projection, H to the intermediate size."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, T, H) to (B, T, intermediate size)."""
        widened: Tensor = self.activation(self.dense(hidden))
        return widened


class BertLayer(nn.Module):
    """Attention, then feed-forward, each with its residual and LayerNorm after it (post-LN)."""

    def __init__(self, config: BertConfig) -> None:
        """Name the parts as checkpoints do."""
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config, config.intermediate_size)

    def forward(self, hidden: Tensor, seen: LayerSeen) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended = self.attention(hidden, seen)
        fed: Tensor = self.output(self.intermediate(attended), attended)
        return fed


class LayerStack(nn.Module):
    """The layers of any body."""

    layer: nn.ModuleList
    checkpointing = False  # see recompute_activations


class BertLayers(LayerStack):
    """The stack of L layers, some of which may share their weights."""

    def __init__(self, config: BertConfig) -> None:
        """Make the layers that have weights of their own, and the table of relative positions where there is one."""
        super().__init__()
        self.order = config.layer_order
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_layer_weights))
        if buckets := config.relative_attention_num_buckets:
            self.relative_attention_bias = nn.Embedding(buckets, config.num_attention_heads)
        self.config = config
        if config.pos_att_type:
            self.rel_embeddings = nn.Embedding(2 * config.distance_span, config.hidden_size)
        if config.norm_rel_ebd == "layer_norm":
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.conv = NeighbourConvolution(config) if config.conv_kernel_size > 0 else None

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        *_, last = self.states(hidden, mask)
        return last

    def states(self, hidden: Tensor, mask: Mask) -> Iterator[Tensor]:
        """Yield the output (B, T, H) of each layer."""
        embedded, seen = hidden, visible(mask, hidden, self.config, self.training)
        with_distances = self._with_distances(hidden, seen)
        for place, number in enumerate(self.order):
            if self.checkpointing and self.training:
                hidden = checkpoint(self.layer[number], hidden, with_distances, use_reentrant=False)
            else:
                hidden = self.layer[number](hidden, with_distances)
            if place == 0 and self.conv is not None:
                assert not isinstance(seen, TextRows)
                hidden = self.conv(embedded, hidden, seen)
            yield hidden

    def _with_distances(self, hidden: Tensor, seen: Seen) -> LayerSeen:
        """Return what attention sees, with what depends on each pair's distance."""
        has_vectors = hasattr(self, "rel_embeddings")
        if not (has_vectors or hasattr(self, "relative_attention_bias")):
            return seen
        assert not isinstance(seen, TextRows)
        if has_vectors:
            vectors = self.rel_embeddings.weight
            vectors = self.LayerNorm(vectors) if hasattr(self, "LayerNorm") else vectors
            return distances(self.config, seen, vectors, hidden.shape[1])
        buckets = _buckets(hidden.shape[1], hidden.device)
        by_distance: Tensor = (
            self.relative_attention_bias(buckets).permute(2, 0, 1)[None].to(score_dtype(hidden))
        )
        return by_distance if seen is None else by_distance + seen


@lru_cache(maxsize=16)
def _buckets(tokens: int, device: torch.device) -> Tensor:
    """Return the bucket of each query and key (T, T) on a device, kept there: to send it would wait for the device."""
    return torch.from_numpy(bucket_table(tokens)).to(device)


class BertPooler(nn.Module):
    """The [CLS] token through a dense layer and an activation: tanh, unless the family has another."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projection, H to H."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.pooler_act)
        self.dropout = nn.Dropout(config.pooler_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Pool (B, T, H) to (B, H)."""
        pooled: Tensor = self.activation(self.dense(self.dropout(hidden[:, 0])))
        return pooled


class BertModel(nn.Module):
    """Embeddings, the stack of layers, and the pooler that some heads read."""

    def __init__(self, config: BertConfig, *, pooler: bool = True) -> None:
        """Make the model with fresh weights: normal with `initializer_range`, biases 0."""
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        if config.projects_embeddings:
            self.embeddings_project = nn.Linear(config.embedding_width, config.hidden_size)
        self.encoder = BertLayers(config)
        self.pooler = BertPooler(config) if pooler else None
        self.apply(lambda module: initialize(module, config.initializer_range))
        if not config.has_segments:
            nn.init.zeros_(self.embeddings.token_type_embeddings.weight.requires_grad_(False))
        if not config.family.has_key_bias:
            freeze_key_biases(self)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Mask = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encode ids (B, T) to hidden states (B, T, H).

        `attention_mask` is 1 at tokens and 0 at padding, (B, T), or says by pairs (B, T, T) which query sees which
        key. Packed texts need this, or better their rows. Leave it out where nothing is padded: attention is faster
        without.
        """
        hidden = self._embed(input_ids, segment_ids, position_ids)
        encoded: Tensor = self.encoder(hidden, attention_mask)
        return encoded

    def all_states(
        self, input_ids: Tensor, segment_ids: Tensor | None = None, attention_mask: Mask = None
    ) -> list[Tensor]:
        """Encode ids (B, T) to L + 1 states (B, T, H): the embeddings, then the output of each layer."""
        hidden = self._embed(input_ids, segment_ids, None)
        return [hidden, *self.encoder.states(hidden, attention_mask)]

    def _embed(self, input_ids: Tensor, segment_ids: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """Return embeddings (B, T, H)."""
        if segment_ids is None:
            segment_ids = torch.zeros_like(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        embedded: Tensor = self.embeddings(input_ids, segment_ids, position_ids)
        if self.config.projects_embeddings:
            embedded = self.embeddings_project(embedded)
        return embedded


def recompute_activations(model: nn.Module, on: bool = True) -> None:
    """Keep only what goes into each layer, and compute the rest again in the backward pass: less memory, more time.

    Gradients are the same. It is so for every stack of layers in the model, while that is in training mode.
    """
    for module in model.modules():
        if isinstance(module, LayerStack):
            module.checkpointing = on


def initialize(module: nn.Module, initializer_range: float) -> None:
    """Give a module BERT's fresh weights (modeling.py draws from a normal truncated at two deviations)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(
            module.weight, std=initializer_range, a=-2 * initializer_range, b=2 * initializer_range
        )
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
