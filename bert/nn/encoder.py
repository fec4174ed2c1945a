"""BERT's encoder, read top to bottom, with what its relatives add: narrow embeddings, shared layers, relative positions.

B texts, T tokens, E width of the embeddings, H width, A heads, D head size, L layers.

Source: Devlin et al. 2018 (arXiv 1810.04805) and google-research/bert `modeling.py`. Module names are the ones that
checkpoints on the hub have, so that `state_dict` is the file format.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert.config import BertConfig
from bert.nn.activation import activation
from bert.nn.attention import BertSelfAttention
from bert.nn.disentangled import (
    DisentangledSelfAttention,
    Distances,
    NeighbourConvolution,
    distances,
    freeze_key_biases,
)
from bert.relatives.relative_positions import bucket_table

Bias = Tensor | Distances | None
"""Second input of every layer's attention: a bias that broadcasts to (B, A, T, T), or vectors of distances."""


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

    def __init__(self, config: BertConfig, inner_size: int) -> None:
        """Shape the projection, `inner_size` to H."""
        super().__init__()
        self.dense = nn.Linear(inner_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

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
        self.output = BertResidual(config, config.hidden_size)

    def forward(self, hidden: Tensor, bias: Bias) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended: Tensor = self.output(self.self(hidden, bias), hidden)
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

    def forward(self, hidden: Tensor, bias: Bias) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended = self.attention(hidden, bias)
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

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        *_, last = self.states(hidden, bias)
        return last

    def states(self, hidden: Tensor, bias: Tensor | None) -> Iterator[Tensor]:
        """Yield the output (B, T, H) of each layer."""
        embedded, mask, with_distances = hidden, bias, self._with_distances(hidden, bias)
        for place, number in enumerate(self.order):
            if self.checkpointing and self.training:
                hidden = checkpoint(self.layer[number], hidden, with_distances, use_reentrant=False)
            else:
                hidden = self.layer[number](hidden, with_distances)
            if place == 0 and self.conv is not None:
                hidden = self.conv(embedded, hidden, mask)
            yield hidden

    def _with_distances(self, hidden: Tensor, bias: Tensor | None) -> Bias:
        """Return the bias with what depends on each pair's distance."""
        if hasattr(self, "rel_embeddings"):
            vectors = self.rel_embeddings.weight
            vectors = self.LayerNorm(vectors) if hasattr(self, "LayerNorm") else vectors
            return distances(self.config, bias, vectors, hidden.shape[1])
        if not hasattr(self, "relative_attention_bias"):
            return bias
        buckets = torch.from_numpy(bucket_table(hidden.shape[1])).to(hidden.device)
        by_distance: Tensor = (
            self.relative_attention_bias(buckets).permute(2, 0, 1)[None].to(score_dtype(hidden))
        )
        return by_distance if bias is None else by_distance + bias


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
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encode ids (B, T) to hidden states (B, T, H).

        `attention_mask` is 1 at tokens and 0 at padding, (B, T), or says by pairs (B, T, T) which query sees which
        key, as packed texts need. Leave it out where nothing is padded: attention is faster without.
        """
        hidden, bias = self._embed(input_ids, segment_ids, attention_mask, position_ids)
        encoded: Tensor = self.encoder(hidden, bias)
        return encoded

    def all_states(
        self, input_ids: Tensor, segment_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> list[Tensor]:
        """Encode ids (B, T) to L + 1 states (B, T, H): the embeddings, then the output of each layer."""
        hidden, bias = self._embed(input_ids, segment_ids, attention_mask, None)
        return [hidden, *self.encoder.states(hidden, bias)]

    def _embed(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return embeddings (B, T, H), and the mask as a bias."""
        if segment_ids is None:
            segment_ids = torch.zeros_like(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        embedded = self.embeddings(input_ids, segment_ids, position_ids)
        if self.config.projects_embeddings:
            embedded = self.embeddings_project(embedded)
        return embedded, attention_bias(attention_mask, embedded)


def attention_bias(attention_mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Return what a mask by key (B, T) or by pairs (B, T, T) adds to attention's scores: 0 where seen, else -inf almost.

    It broadcasts to (B, A, T, T) and has the type that queries will have. Made once, where attention would make it
    from the mask in each layer.
    """
    if attention_mask is None:
        return None
    dtype = score_dtype(hidden)
    seen = attention_mask[:, None, None, :] if attention_mask.dim() == 2 else attention_mask[:, None]
    bias = torch.zeros(seen.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill_(~seen.bool(), torch.finfo(dtype).min)


def score_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type that attention's scores of hidden states will have."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


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
