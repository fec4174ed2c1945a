"""DeBERTa's layers: BERT's, with scores that depend on distances and a convolution after the first layer.

He et al. 2020 (arXiv 2006.03654); names are those of version 2. B texts, T tokens, H width, A heads, D head size, N rows
of the table of distances.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.bodies.deberta import DebertaBody, row_table
from bert.config import BertConfig
from bert.nn.attention import BertSelfAttention, Seen, TextRows, attend
from bert.nn.bert import BertLayers, BertModel
from bert.nn.encoder import Products, activation


@dataclass(frozen=True, slots=True)
class Distances:
    """Inputs of every layer's attention scores other than the hidden states."""

    mask: Tensor | None
    """Added to the scores, (B or 1, 1, T or 1, T); None where all is seen."""
    vectors: Tensor
    """Vectors of distances, normalised where the config says so, (N, H)."""
    rows: Tensor
    """Row of `vectors` for each query and key, (T, T)."""


@lru_cache(maxsize=16)
def _rows(tokens: int, span: int, buckets: int, furthest: int, device: torch.device) -> Tensor:
    """Return the table of rows on a device, kept there: to send it in each step would wait for the device."""
    return torch.from_numpy(row_table(tokens, span, buckets, furthest)).to(device)


class DisentangledSelfAttention(BertSelfAttention):
    """Attention whose scores have terms of a query with a distance ("c2p") and of a key with one ("p2c")."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projections, H to H each: the distances' own, or those of queries and keys for them too."""
        super().__init__(config)
        body = DebertaBody.of(config.body)
        self.terms, self.is_shared = body.pos_att_type, body.share_att_key
        self.scale, self.vector_dropout = body.score_scale(config), config.hidden_dropout_prob
        width = config.hidden_size
        if "c2p" in self.terms and not self.is_shared:
            self.pos_key_proj = nn.Linear(width, width)
        if "p2c" in self.terms and not self.is_shared:
            self.pos_query_proj = nn.Linear(width, width)

    def forward(self, hidden: Tensor, bias: Distances) -> Tensor:  # type: ignore[override]
        """Attend within hidden (B, T, H)."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        scores = self._terms(q, k, bias)
        if bias.mask is not None:
            scores = scores + bias.mask
        dropout = self.dropout_prob if self.training else 0.0
        return attend(q, k, v, scores, dropout, self.scale).transpose(1, 2).flatten(2)  # (B, T, H)

    def _terms(self, q: Tensor, k: Tensor, bias: Distances) -> Tensor:
        """Return what distances add to the scores, (B, A, T, T); queries and keys are (B, A, T, D)."""
        vectors = F.dropout(bias.vectors, self.vector_dropout, self.training)[None]
        rows = bias.rows.expand(*q.shape[:2], -1, -1)
        terms = []
        if "c2p" in self.terms:
            of_keys = self._heads((self.key if self.is_shared else self.pos_key_proj)(vectors))
            terms.append((q @ of_keys.transpose(-1, -2)).gather(-1, rows))
        if "p2c" in self.terms:
            of_queries = self._heads((self.query if self.is_shared else self.pos_query_proj)(vectors))
            terms.append((of_queries @ k.transpose(-1, -2)).gather(-2, rows))
        return sum(terms[1:], terms[0]) * self.scale


class NeighbourConvolution(nn.Module):
    """Adds a convolution of the embeddings to the first layer's output, and normalises."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the kernel, (H, H / groups, size)."""
        super().__init__()
        width, body = config.hidden_size, DebertaBody.of(config.body)
        self.conv = nn.Conv1d(width, width, body.conv_kernel_size, padding="same", groups=body.conv_groups)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = activation(body.conv_act)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Map embeddings and the first layer's output, (B, T, H) each, to (B, T, H).

        `mask` is that of attention: a neighbour that a token does not see counts as zeros.
        """
        if mask is None:
            convolved: Tensor = self.conv(embedded.transpose(1, 2)).transpose(1, 2)
        else:
            convolved = self._seen(embedded, mask == 0)
        normalised: Tensor = self.LayerNorm(hidden + self.activation(self.dropout(convolved)))
        return normalised

    def _seen(self, embedded: Tensor, seen: Tensor) -> Tensor:
        """Convolve embeddings (B, T, H) neighbour by neighbour; `seen` is (B or 1, 1, T or 1, T)."""
        tokens, reach = embedded.shape[1], self.conv.kernel_size[0] // 2
        pairs = seen[:, 0].expand(-1, tokens, -1)  # (B, T, T)
        assert self.conv.bias is not None
        convolved = torch.zeros_like(embedded) + self.conv.bias
        for number, offset in enumerate(range(-reach, reach + 1)):
            if abs(offset) >= tokens:
                continue
            # What stands `offset` tokens further, zeros where there is nothing that the token sees.
            moved = F.pad(embedded, (0, 0, -offset, offset))
            visible = F.pad(pairs.diagonal(offset, 1, 2), (max(-offset, 0), max(offset, 0)))
            kernel = self.conv.weight[:, :, number : number + 1]
            inner = (moved * visible[..., None]).transpose(1, 2)
            convolved = convolved + F.conv1d(inner, kernel, groups=self.conv.groups).transpose(1, 2)
        return convolved


class DebertaLayers(BertLayers):
    """The stack of layers, with the vectors of distances that all of them read."""

    def __init__(self, config: BertConfig) -> None:
        """Make the layers, and what the config asks for beside them."""
        body = DebertaBody.of(config.body)
        super().__init__(config, DisentangledSelfAttention if body.pos_att_type else BertSelfAttention)
        self.body = body
        self.span, self.buckets, self.furthest = body.distance_table(config)
        if body.pos_att_type:
            self.rel_embeddings = nn.Embedding(2 * self.span, config.hidden_size)
        if body.normalises_distances:
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.conv = NeighbourConvolution(config) if body.conv_kernel_size > 0 else None

    def with_terms(self, hidden: Tensor, seen: Seen, position_ids: Tensor) -> Any:
        """Return what attention reads beside the hidden states: what it sees, and where it has terms the distances."""
        if not self.body.pos_att_type:
            return seen
        assert not isinstance(seen, TextRows)
        vectors = self.rel_embeddings.weight
        vectors = self.LayerNorm(vectors) if self.body.normalises_distances else vectors
        rows = _rows(hidden.shape[1], self.span, self.buckets, self.furthest, vectors.device)
        return Distances(seen, vectors, rows)

    def after_first(self, embedded: Tensor, hidden: Tensor, seen: Seen) -> Tensor:
        """Return the first layer's output with the convolution of the embeddings added, where there is one."""
        if self.conv is None:
            return hidden
        assert not isinstance(seen, TextRows)
        convolved: Tensor = self.conv(embedded, hidden, seen)
        return convolved

    def products(self) -> Products:
        """Count the products of attention, those of each query, and each key, with every vector of a distance too."""
        rows = 2 * self.span * len(self.body.pos_att_type)
        return super().products()._replace(token=len(self.order) * rows * self.config.hidden_size)


class DebertaModel(BertModel):
    """Embeddings, the stack of layers, and the pooler that some heads read."""

    layers_class = DebertaLayers

    def __init__(self, config: BertConfig, *, pooler: bool = True) -> None:
        """Make the model with fresh weights."""
        super().__init__(config, pooler=pooler)
        if (
            not config.family.has_key_bias
        ):  # as in version 1: those of keys, and of distances as keys, stay zero
            for name, parameter in self.named_parameters():
                if name.endswith((".self.key.bias", ".self.pos_key_proj.bias")):
                    nn.init.zeros_(parameter.requires_grad_(False))
