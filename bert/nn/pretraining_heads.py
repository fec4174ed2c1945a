"""Heads of BERT's relatives that are read in pretraining only; names of modules are those of their checkpoints.

M masked positions, R rows of T tokens, H width, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.config import BertConfig
from bert.nn.encoder import activation, initialize
from bert.nn.heads import BertHead

SPAN_POSITION_SIZE = 200
"""Width of the embedding of a position in a span (facebookresearch/SpanBERT, pair_bert.py)."""
SPAN_TARGETS = 15
"""Tokens of a span that are predicted from its borders, from the first on (there `--max-pair-targets`)."""


class SpanBoundaryHead(nn.Module):
    """SpanBERT's: a masked token from the tokens on either side of its span and its place in it.

    Joshi et al. 2019 (arXiv 1907.10529), section 3.2: two layers with GELU and LayerNorm, then the word embedding.
    """

    def __init__(self, config: BertConfig, word_embeddings: nn.Embedding) -> None:
        """Make the layers."""
        super().__init__()
        width, narrow = config.hidden_size, config.embedding_width
        self.position_embeddings = nn.Embedding(SPAN_TARGETS, SPAN_POSITION_SIZE)
        self.linear1 = nn.Linear(2 * width + SPAN_POSITION_SIZE, width)
        self.layer_norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.linear2 = nn.Linear(width, narrow)
        self.layer_norm2 = nn.LayerNorm(narrow, eps=config.layer_norm_eps)
        self.activation = activation(config.hidden_act)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.apply(lambda module: initialize(module, config.initializer_range))
        self.decoder = nn.Linear(narrow, config.vocab_size, bias=False)
        self.decoder.weight = word_embeddings.weight

    def forward(self, boundaries: Tensor, offsets: Tensor) -> Tensor:
        """Score, from hidden states left and right of each span (M, 2, H) and places in it (M,): logits (M, V)."""
        inner = torch.cat([boundaries.flatten(1), self.position_embeddings(offsets)], -1)
        inner = self.layer_norm1(self.activation(self.linear1(inner)))
        inner = self.layer_norm2(self.activation(self.linear2(inner)))
        logits: Tensor = self.decoder(inner) + self.bias
        return logits


class DiscriminatorPredictions(nn.Module):
    """ELECTRA's: dense, activation, one number (Clark et al. 2020, arXiv 2003.10555)."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the layers, H to H and H to 1."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        self.apply(lambda module: initialize(module, config.initializer_range))

    def forward(self, hidden: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Score hidden states (R, T, H): logits (R, T)."""
        logits: Tensor = self.dense_prediction(self.activation(self.dense(hidden)))[..., 0]
        return logits


class MaskPredictions(nn.Module):
    """DeBERTa's: the first token's state is added to each token's before the norm (He et al. 2021, arXiv 2111.09543)."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the layers, H to H and H to 1."""
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.apply(lambda module: initialize(module, config.initializer_range))

    def forward(self, hidden: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Score hidden states (R, T, H): logits (R, T)."""
        inner = self.LayerNorm(firsts(hidden, position_ids) + hidden)
        logits: Tensor = self.classifier(self.activation(self.dense(inner)))[..., 0]
        return logits


def firsts(hidden: Tensor, position_ids: Tensor | None) -> Tensor:
    """Return the hidden state of the first token of each token's text, (R, 1 or T, H).

    Positions (R, T) count from 0 in each text; without them a row holds one text.
    """
    if position_ids is None:
        return hidden[:, :1]
    here = torch.arange(position_ids.numel(), device=hidden.device).view_as(position_ids)
    # An embedding sums its gradient in a fixed order on a GPU too; indexing does not.
    return F.embedding(here - position_ids, hidden.flatten(0, 1))


DISCRIMINATORS = {"discriminator_predictions": DiscriminatorPredictions, "mask_predictions": MaskPredictions}
"""Name of a head that finds replaced pieces (`Family.discriminator`) → its module."""


class BertForReplacedTokenDetection(BertHead):
    """Discriminator: which tokens are not the original ones."""

    def __init__(self, config: BertConfig) -> None:
        """Make the family's head, H to 1."""
        super().__init__(config)
        self.own_head = config.family.discriminator or "discriminator_predictions"
        self.add_module(self.own_head, DISCRIMINATORS[self.own_head](config))

    def score(self, hidden: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Score hidden (R, T, H): logits (R, T), above 0 where a token looks replaced.

        Positions (R, T) are needed where several texts share a row.
        """
        logits: Tensor = self.get_submodule(self.own_head)(hidden, position_ids)
        return logits
