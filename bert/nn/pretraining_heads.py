"""Heads of BERT's relatives that are read in pretraining only; names of modules are those of their checkpoints.

M masked positions, R rows of T tokens, H width, E width of the embeddings, G width of a generator, V vocabulary.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bert.config import BertConfig
from bert.nn.activation import activation
from bert.nn.attention import Mask
from bert.nn.encoder import BertEmbeddings, BertLayers, initialize
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
        width = config.hidden_size
        self.position_embeddings = nn.Embedding(SPAN_TARGETS, SPAN_POSITION_SIZE)
        self.linear1 = nn.Linear(2 * width + SPAN_POSITION_SIZE, width)
        self.layer_norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.linear2 = nn.Linear(width, width)
        self.layer_norm2 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = activation(config.hidden_act)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.apply(lambda module: initialize(module, config.initializer_range))
        self.decoder = nn.Linear(width, config.vocab_size, bias=False)
        self.decoder.weight = word_embeddings.weight

    def forward(self, boundaries: Tensor, offsets: Tensor) -> Tensor:
        """Score, from hidden states left and right of each span (M, 2, H) and places in it (M,): logits (M, V)."""
        inner = torch.cat([boundaries.flatten(1), self.position_embeddings(offsets)], -1)
        inner = self.layer_norm1(self.activation(self.linear1(inner)))
        inner = self.layer_norm2(self.activation(self.linear2(inner)))
        logits: Tensor = self.decoder(inner) + self.bias
        return logits


class DiscriminatorPredictions(nn.Module):
    """Dense, activation, one number."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the layers, H to H and H to 1."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        self.apply(lambda module: initialize(module, config.initializer_range))

    def forward(self, hidden: Tensor) -> Tensor:
        """Score hidden states (..., H): logits (...)."""
        logits: Tensor = self.dense_prediction(self.activation(self.dense(hidden)))[..., 0]
        return logits


class BertForReplacedTokenDetection(BertHead):
    """Which tokens are not the original ones: ELECTRA's discriminator (Clark et al. 2020, arXiv 2003.10555)."""

    def __init__(self, config: BertConfig) -> None:
        """Make the head, H to 1."""
        super().__init__(config)
        self.discriminator_predictions = DiscriminatorPredictions(config)

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (R, T, H): logits (R, T), above 0 where a token looks replaced."""
        logits: Tensor = self.discriminator_predictions(hidden)
        return logits


class GeneratorPredictions(nn.Module):
    """Dense, GELU, LayerNorm: from the generator's width back to that of the embeddings."""

    def __init__(self, config: BertConfig, embedding_size: int) -> None:
        """Shape the projection, G to E."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, embedding_size)
        self.activation = activation("gelu")  # whatever the layers have, as in transformers
        self.LayerNorm = nn.LayerNorm(embedding_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., G) to (..., E)."""
        normalised: Tensor = self.LayerNorm(self.activation(self.dense(hidden)))
        return normalised


class ElectraEncoder(nn.Module):
    """Embeddings of width E, projected to G where the two differ, and layers of width G."""

    def __init__(self, config: BertConfig, embeddings: BertEmbeddings) -> None:
        """Make the layers around embeddings that belong to another model too."""
        super().__init__()
        embedding_size = embeddings.word_embeddings.embedding_dim
        if embedding_size != config.hidden_size:
            self.embeddings_project = nn.Linear(embedding_size, config.hidden_size)
        self.encoder = BertLayers(config)
        self.apply(lambda module: initialize(module, config.initializer_range))
        self.embeddings = embeddings  # after the others: it is not drawn again

    def forward(
        self, input_ids: Tensor, segment_ids: Tensor, attention_mask: Mask, position_ids: Tensor
    ) -> Tensor:
        """Encode ids (R, T) to hidden states (R, T, G); arguments are those of BertModel."""
        hidden = self.embeddings(input_ids, segment_ids, position_ids)
        if hasattr(self, "embeddings_project"):
            hidden = self.embeddings_project(hidden)
        encoded: Tensor = self.encoder(hidden, attention_mask)
        return encoded


class ElectraGenerator(nn.Module):
    """The masked language model that proposes replacements; modules as in transformers' ElectraForMaskedLM."""

    def __init__(self, config: BertConfig, embeddings: BertEmbeddings) -> None:
        """Make a model as wide as `config` says between the discriminator's embeddings and back."""
        super().__init__()
        self.config = config
        embedding_size = embeddings.word_embeddings.embedding_dim
        self.electra = ElectraEncoder(config, embeddings)
        self.generator_predictions = GeneratorPredictions(config, embedding_size)
        self.generator_predictions.apply(lambda module: initialize(module, config.initializer_range))
        self.generator_lm_head = nn.Linear(embedding_size, config.vocab_size)
        nn.init.zeros_(self.generator_lm_head.bias)
        self.generator_lm_head.weight = embeddings.word_embeddings.weight

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden states (..., G) against the vocabulary: (..., V)."""
        logits: Tensor = self.generator_lm_head(self.generator_predictions(hidden))
        return logits


def generator_config(config: BertConfig, width: float) -> BertConfig:
    """Return the generator's shape: as deep as the discriminator, `width` of its heads, heads of the same size."""
    heads = max(1, round(config.num_attention_heads * width))
    return replace(
        config,
        hidden_size=heads * config.head_size,
        num_attention_heads=heads,
        intermediate_size=max(1, config.intermediate_size * heads // config.num_attention_heads),
    )
