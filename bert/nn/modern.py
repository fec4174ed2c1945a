"""ModernBERT's encoder: norms before each half of a layer, rotations for positions, windows, and gated layers.

B texts, T tokens, H width, A heads, D head size, I width of the gated layer, L layers.

Source: Warner et al. 2024 (arXiv 2412.13663). Its linear layers are joined as its checkpoints have them, so that adapters
for these fit.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from bert.bodies.modern import ModernBody
from bert.config import BertConfig
from bert.nn.attention import Mask, Seen, TextRows, attend, score_dtype, visible
from bert.nn.encoder import Embeddings, Encoder, LayerStack, Products, activation, initialize

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, (B or 1, 1, T, D / 2) each."""


def norm(config: BertConfig) -> nn.LayerNorm:
    """Make a norm over H features, with a bias where the config says so."""
    return nn.LayerNorm(
        config.hidden_size, eps=config.layer_norm_eps, bias=ModernBody.of(config.body).norm_bias
    )


class ModernEmbeddings(Embeddings):
    """Word embeddings, normalised: positions are in attention."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the table."""
        super().__init__()
        self.word_embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.LayerNorm = norm(config)
        self.dropout = nn.Dropout(ModernBody.of(config.body).embedding_dropout)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed ids (B, T) to (B, T, H)."""
        embedded: Tensor = self.dropout(self.LayerNorm(self.word_embeddings(input_ids)))
        return embedded


class ModernSelfAttention(nn.Module):
    """Multi-head attention with rotated queries and keys."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the joined projections, H to 3H."""
        super().__init__()
        self.num_heads, self.dropout_prob = config.num_attention_heads, config.attention_probs_dropout_prob
        width, bias = config.hidden_size, ModernBody.of(config.body).attention_bias
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)

    def forward(self, hidden: Tensor, seen: Seen, rotation: Rotation) -> Tensor:
        """Attend within hidden (B, T, H)."""
        batch, tokens, width = hidden.shape
        joined = self.query_key_value(hidden).view(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = joined.permute(2, 0, 3, 1, 4)  # (B, A, T, D) each
        q, k = rotated(q, rotation), rotated(k, rotation)
        dropout = self.dropout_prob if self.training else 0.0
        return attend(q, k, v, seen, dropout).transpose(1, 2).flatten(2)  # (B, T, H)


class ModernOutput(nn.Module):
    """Projection back to the width of the residual."""

    def __init__(self, config: BertConfig, inner_size: int, *, bias: bool, dropout: float) -> None:
        """Shape the projection, `inner_size` to H; dropout is after it."""
        super().__init__()
        self.dense = nn.Linear(inner_size, config.hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inner: Tensor) -> Tensor:
        """Map (B, T, inner_size) to (B, T, H)."""
        projected: Tensor = self.dropout(self.dense(inner))
        return projected


class ModernAttention(nn.Module):
    """First half of a layer, without its residual. The first layer has no norm: the embeddings' own is before it."""

    def __init__(self, config: BertConfig, number: int) -> None:
        """Make the parts of layer `number`."""
        super().__init__()
        self.LayerNorm = norm(config) if number else nn.Identity()
        self.self = ModernSelfAttention(config)
        self.output = ModernOutput(
            config,
            config.hidden_size,
            bias=ModernBody.of(config.body).attention_bias,
            dropout=config.attention_probs_dropout_prob,
        )

    def forward(self, hidden: Tensor, seen: Seen, rotation: Rotation) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        attended: Tensor = self.output(self.self(self.LayerNorm(hidden), seen, rotation))
        return attended


class ModernIntermediate(nn.Module):
    """Widening half of the feed-forward network: one half of its outputs, activated, times the other (GeGLU)."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projection, H to 2I."""
        super().__init__()
        self.LayerNorm = norm(config)
        self.dense = nn.Linear(
            config.hidden_size, 2 * config.intermediate_size, bias=ModernBody.of(config.body).mlp_bias
        )
        self.activation = activation(config.hidden_act)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, T, H) to (B, T, I)."""
        inner, gate = self.dense(self.LayerNorm(hidden)).chunk(2, dim=-1)
        gated: Tensor = self.dropout(self.activation(inner) * gate)
        return gated


class ModernLayer(nn.Module):
    """Attention, then feed-forward, each with its norm before it and its residual around both."""

    def __init__(self, config: BertConfig, number: int) -> None:
        """Make layer `number`."""
        super().__init__()
        self.attention = ModernAttention(config, number)
        self.intermediate = ModernIntermediate(config)
        self.output = ModernOutput(
            config, config.intermediate_size, bias=ModernBody.of(config.body).mlp_bias, dropout=0.0
        )

    def forward(self, hidden: Tensor, seen: Seen, rotation: Rotation) -> Tensor:
        """Map (B, T, H) to (B, T, H)."""
        hidden = hidden + self.attention(hidden, seen, rotation)
        fed: Tensor = hidden + self.output(self.intermediate(hidden))
        return fed


class ModernLayers(LayerStack):
    """The stack of L layers and the norm after it."""

    has_last_norm = True

    def __init__(self, config: BertConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.config, self.body, self.order = config, ModernBody.of(config.body), config.layer_order
        self.layer = nn.ModuleList(ModernLayer(config, number) for number in range(config.num_hidden_layers))
        self.LayerNorm = norm(config)

    def forward(self, hidden: Tensor, mask: Mask, position_ids: Tensor) -> Tensor:
        """Map embeddings (B, T, H) to the last layer's output, normalised (B, T, H)."""
        rows = TextRows.full(hidden) if mask is None else mask
        whole = visible(rows, hidden, self.config, self.training)
        seen = {False: whole, True: self._within_window(hidden, whole)}
        thetas = {self.body.full_theta, self.body.sliding_theta}
        rotations = {theta: rotation(position_ids, theta, self.config.head_size) for theta in thetas}
        for number, layer in enumerate(self.layer):
            arguments = hidden, seen[self.body.sliding[number]], rotations[self.body.theta(number)]
            hidden = self.run(layer, *arguments)
        normalised: Tensor = self.LayerNorm(hidden)
        return normalised

    def products(self) -> Products:
        """Count the products of attention: scores, and their use."""
        each, sliding = 2 * self.config.hidden_size, self.body.sliding
        return Products(attended=each * sliding.count(False), in_window=each * sliding.count(True))

    def _within_window(self, hidden: Tensor, seen: Seen) -> Seen:
        """Return what the sliding layers see: tokens that are no further away than the window."""
        tokens, window = hidden.shape[1], self.body.window
        if not any(self.body.sliding) or tokens <= window + 1:
            return seen
        if isinstance(seen, TextRows):
            return replace(seen, window=(window, window))
        dtype, places = score_dtype(hidden), torch.arange(tokens, device=hidden.device)
        outside = (places[:, None] - places).abs() > window
        if seen is None:
            seen = torch.zeros((1, 1, tokens, tokens), dtype=dtype, device=hidden.device)
        return seen.masked_fill(outside, torch.finfo(dtype).min)


class ModernModel(Encoder):
    """Embeddings and the stack of layers; it has no pooler."""

    def __init__(self, config: BertConfig, *, pooler: bool = False) -> None:
        """Make the model with fresh weights, those that add to the residual smaller the deeper it is."""
        super().__init__(config)
        self.embeddings = ModernEmbeddings(config)
        self.encoder = ModernLayers(config)
        self.pooler = None
        self.apply(lambda module: initialize(module, config.initializer_range))
        deep = config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
        for module in self.modules():
            if isinstance(module, ModernOutput):
                initialize(module.dense, deep)

    def embed(self, input_ids: Tensor, segment_ids: Tensor | None, position_ids: Tensor) -> Tensor:
        """Return what the first layer reads, (B, T, H); segments and places are not read."""
        embedded: Tensor = self.embeddings(input_ids)
        return embedded

    def make_head(self) -> nn.Module:
        """Make the layers that all heads share."""
        return ModernHead(self.config)

    @property
    def scorer_range(self) -> float:
        """Standard deviation that gives scores a variance of 1 (AnswerDotAI/ModernBERT, initialization.py: final_out)."""
        return float(self.config.hidden_size**-0.5)


class ModernHead(nn.Module):
    """Dense, activation, norm: what all heads but embeddings read."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projection, H to H."""
        super().__init__()
        width, shape = config.hidden_size, ModernBody.of(config.body)
        self.dense = nn.Linear(width, width, bias=shape.classifier_bias)
        self.activation = activation(shape.classifier_activation)
        self.norm = norm(config)
        initialize(self.dense, config.initializer_range / math.sqrt(2 * config.num_hidden_layers))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., H) to the same."""
        normalised: Tensor = self.norm(self.activation(self.dense(hidden)))
        return normalised


def rotation(position_ids: Tensor, theta: float, head_size: int, divisor: float = 1.0) -> Rotation:
    """Return the cosines and sines of places (B or 1, T), by which queries and keys are rotated."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=position_ids.device) / head_size
    angles = position_ids[:, None, :, None].float() * (1.0 / theta**exponents / divisor)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, by: Rotation) -> Tensor:
    """Rotate each feature of the first half of a head with its partner in the second half; (B, A, T, D) to the same."""
    (first, second), (cos, sin) = x.float().chunk(2, dim=-1), by
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
