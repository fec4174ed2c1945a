"""BERT's encoder, read top to bottom, with what its families add: narrow embeddings, shared layers.

B texts, T tokens, E width of the embeddings, H width, A heads, D head size, L layers.

Source: Devlin et al. 2018 (arXiv 1810.04805) and google-research/bert `modeling.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bert.config import BertConfig
from bert.nn.attention import BertSelfAttention, Mask, Seen, visible
from bert.nn.encoder import Embeddings, Encoder, LayerStack, Products, activation, initialize


class BertEmbeddings(Embeddings):
    """Sum of word, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the tables, and the layer that widens their sum."""
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.has_positions, self.is_widened = config.body.has_positions, config.widens_embeddings
        if self.has_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if self.is_widened:
            self.embed_proj = nn.Linear(width, config.hidden_size, bias=False)
        normalised = config.hidden_size if self.is_widened else width
        self.LayerNorm = nn.LayerNorm(normalised, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embed ids (B, T) to (B, T, E), or H where they are widened before the norm."""
        summed = self.word_embeddings(input_ids) + self.token_type_embeddings(segment_ids)
        if self.has_positions:
            summed = summed + self.position_embeddings(position_ids)
        if self.is_widened:
            summed = self.embed_proj(summed)
        embedded: Tensor = self.dropout(self.LayerNorm(summed))
        return embedded


class BertResidual(nn.Module):
    """Project, drop out, add to what went in, normalise: the end of both halves of a layer."""

    def __init__(self, config: BertConfig, inner_size: int, *, drops: bool = True) -> None:
        """Shape the projection, `inner_size` to H; `drops` is False for a body without dropout here."""
        super().__init__()
        self.dense = nn.Linear(inner_size, config.hidden_size, bias=config.body.has_biases)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if drops else 0.0)

    def forward(self, inner: Tensor, residual: Tensor) -> Tensor:
        """Add inner (B, T, inner_size), projected, to residual (B, T, H)."""
        normalised: Tensor = self.LayerNorm(residual + self.dropout(self.dense(inner)))
        return normalised


class BertAttention(nn.Module):
    """First half of a layer: attention and its residual."""

    def __init__(self, config: BertConfig, attention: type[BertSelfAttention]) -> None:
        """Name the two parts as checkpoints do."""
        super().__init__()
        self.self = attention(config)
        self.output = BertResidual(config, config.hidden_size, drops=config.family.drops_attended)

    def forward(self, hidden: Tensor, seen: Any) -> Tensor:
        """Map (B, T, H) to (B, T, H); `seen` is what the class of attention reads beside."""
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

    def __init__(
        self, config: BertConfig, attention: type[BertSelfAttention], intermediate: type[nn.Module]
    ) -> None:
        """Name the parts as checkpoints do; `attention` is the class of the first one's core."""
        super().__init__()
        self.attention = BertAttention(config, attention)
        self.intermediate = intermediate(config)
        self.output = BertResidual(config, config.intermediate_size)

    def forward(self, hidden: Tensor, seen: Any) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended = self.attention(hidden, seen)
        fed: Tensor = self.output(self.intermediate(attended), attended)
        return fed


class BertLayers(LayerStack):
    """The stack of L layers, some of which may share their weights."""

    def __init__(
        self,
        config: BertConfig,
        attention: type[BertSelfAttention] = BertSelfAttention,
        intermediate: type[nn.Module] = BertIntermediate,
    ) -> None:
        """Make the layers that have weights of their own."""
        super().__init__()
        self.config, self.order = config, config.layer_order
        self.layer = nn.ModuleList(
            BertLayer(config, attention, intermediate) for _ in range(config.num_layer_weights)
        )

    def forward(self, hidden: Tensor, mask: Mask, position_ids: Tensor) -> Tensor:
        """Map embeddings (B, T, H) to the last layer's output (B, T, H)."""
        embedded, seen = hidden, visible(mask, hidden, self.config, self.training)
        with_terms = self.with_terms(hidden, seen, position_ids)
        for place, number in enumerate(self.order):
            hidden = self.run(self.layer[number], hidden, with_terms)
            if place == 0:
                hidden = self.after_first(embedded, hidden, seen)
        return hidden

    def with_terms(self, hidden: Tensor, seen: Seen, position_ids: Tensor) -> Any:
        """Return what attention in every layer reads: what it sees, in other bodies with terms of its scores."""
        return seen

    def after_first(self, embedded: Tensor, hidden: Tensor, seen: Seen) -> Tensor:
        """Return what the second layer reads, (B, T, H), of the embeddings and the first layer's output."""
        return hidden

    def products(self) -> Products:
        """Count the products of attention: scores, and their use."""
        return Products(attended=2 * self.config.hidden_size * len(self.order))


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


class BertModel(Encoder):
    """Embeddings, the stack of layers, and the pooler that some heads read."""

    embeddings: BertEmbeddings
    layers_class: type[BertLayers] = BertLayers

    def __init__(self, config: BertConfig, *, pooler: bool = True) -> None:
        """Make the model with fresh weights: normal with `initializer_range`, biases 0."""
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        if config.projects_embeddings:
            self.embeddings_project = nn.Linear(config.embedding_width, config.hidden_size)
        self.encoder = self.layers_class(config)
        self.pooler = BertPooler(config) if pooler else None
        self.apply(lambda module: initialize(module, config.initializer_range))
        if not config.has_segments:
            nn.init.zeros_(self.embeddings.token_type_embeddings.weight.requires_grad_(False))

    def embed(self, input_ids: Tensor, segment_ids: Tensor | None, position_ids: Tensor) -> Tensor:
        """Return what the first layer reads, (B, T, H)."""
        segment_ids = torch.zeros_like(input_ids) if segment_ids is None else segment_ids
        # A row each, as the gradient of a row for all would be summed in another order.
        embedded: Tensor = self.embeddings(input_ids, segment_ids, position_ids.expand_as(input_ids))
        return self.embeddings_project(embedded) if self.config.projects_embeddings else embedded
