"""BERT with each head of the paper; names of modules are those of checkpoints on the hub.

B texts, T tokens, H width, E width of the embeddings, K labels, V vocabulary.
A head is `score`, hidden states to logits; losses are in losses.py.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.config import BertConfig
from bert.nn.bodies import make_encoder
from bert.nn.encoder import activation, initialize


class BertHead(nn.Module):
    """A BERT with something on top; what the heads share."""

    needs_pooler = False
    """The head reads one vector of a text."""
    has_scores = True
    """The output is scores, not embeddings."""

    def __init__(self, config: BertConfig) -> None:
        """Make the encoder, with a pooler if the head reads one and the family has one."""
        super().__init__()
        self.config = config
        self.bert = make_encoder(config, pooler=self.needs_pooler)
        if config.body.has_one_head and self.has_scores:
            self.head = self.bert.make_head()

    @property
    def head_modules(self) -> list[str]:
        """Names of the modules beside the layers that a task trains: an adapter has them whole."""
        named = [name for name, _ in self.named_children() if name != "bert"]
        return named if self.bert.pooler is None else [*named, "pooler"]

    def _linear(self, outputs: int) -> nn.Linear:
        layer = nn.Linear(self.config.hidden_size, outputs)
        initialize(layer, self.bert.scorer_range)
        return layer

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encode ids (B, T) and score them; arguments are those of Encoder."""
        hidden = self.bert(input_ids, segment_ids, attention_mask, position_ids)
        pooling = self.config.body.text_pooling
        if self.needs_pooler and pooling != "cls":
            hidden = pool(hidden, attention_mask, [pooling])[:, None]
        return self.score(hidden)

    def score(self, hidden: Tensor) -> Tensor:
        """Turn hidden states (B, T, H) into logits."""
        raise NotImplementedError(type(self).__name__)

    def pooled(self, hidden: Tensor) -> Tensor:
        """Return the pooler's output (B, H) with dropout, from hidden (B, T, H)."""
        pooler = self.bert.pooler
        pooled: Tensor = self.head(hidden[:, 0]) if pooler is None else pooler(hidden)
        return F.dropout(pooled, self.config.pooled_dropout, self.training)

    def dropped(self, hidden: Tensor, rate: float) -> Tensor:
        """Return what a layer over each token reads of hidden (B, T, H), with dropout at `rate`."""
        return F.dropout(self.transformed(hidden), rate, self.training)

    def transformed(self, hidden: Tensor) -> Tensor:
        """Pass hidden (..., H) through the layers that all heads share, where the body has such."""
        return self.head(hidden) if self.config.body.has_one_head else hidden


class BertForSequenceClassification(BertHead):
    """One label of K, any number of labels, or K numbers, for a text or a pair."""

    needs_pooler = True

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        """Make the head, H to K."""
        super().__init__(config)
        self.classifier = self._linear(num_labels)

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (B, T, H): logits (B, K)."""
        logits: Tensor = self.classifier(self.pooled(hidden))
        return logits


class BertForTokenClassification(BertHead):
    """A label of K for each token."""

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        """Make the head, H to K."""
        super().__init__(config)
        self.classifier = self._linear(num_labels)

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (B, T, H): logits (B, T, K)."""
        logits: Tensor = self.classifier(self.dropped(hidden, self.config.token_dropout))
        return logits


class BertForQuestionAnswering(BertHead):
    """Start and end of an answer."""

    def __init__(self, config: BertConfig) -> None:
        """Make the head, H to 2."""
        super().__init__(config)
        self.add_module(config.family.answer_head, self._linear(2))

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (B, T, H): logits (B, T, 2), start and end."""
        last = self.get_submodule(self.config.family.answer_head)
        logits: Tensor = last(self.dropped(hidden, self.config.answer_dropout))
        return logits


class BertForMultipleChoice(BertForSequenceClassification):
    """Choice of one of C continuations; each is read as a text of its own, (B*C, T), and has a logit, (B*C, 1)."""

    def __init__(self, config: BertConfig) -> None:
        """Make the head, H to 1."""
        super().__init__(config, 1)


class BertForSimilarity(BertHead):
    """A text as a unit vector, pooled from its tokens' (Reimers & Gurevych 2019, arXiv 1908.10084).

    It has no weights of its own.
    """

    has_scores = False

    def __init__(self, config: BertConfig, poolings: Sequence[str] = ("mean",)) -> None:
        """Make the encoder; `poolings` are names of `bert.tasks.spec.POOLINGS`."""
        super().__init__(config)
        self.poolings = tuple(poolings)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Embed ids (B, T): (B, E), each of length 1. The mask is 1 at tokens and 0 at padding, (B, T)."""
        hidden = self.bert(input_ids, segment_ids, attention_mask, position_ids)
        return F.normalize(pool(hidden, attention_mask, self.poolings).float(), dim=-1)


class MlmTransform(nn.Module):
    """Dense, activation, LayerNorm: what the masked positions pass before the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projection, H to E."""
        super().__init__()
        width = config.embedding_width
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = activation(config.mlm_act)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., H) to (..., E)."""
        normalised: Tensor = self.LayerNorm(self.activation(self.dense(hidden)))
        return normalised


class MlmPredictions(nn.Module):
    """The masked language model's head; its decoder is the word embedding itself, plus a bias."""

    def __init__(self, config: BertConfig, word_embeddings: nn.Embedding) -> None:
        """Tie the decoder to the embedding table (V, E)."""
        super().__init__()
        # Where all heads share layers, those are the transform.
        self.transform = nn.Identity() if config.body.has_one_head else MlmTransform(config)
        self.decoder = nn.Linear(config.embedding_width, config.vocab_size, bias=False)
        self.decoder.weight = word_embeddings.weight
        has_bias = config.body.has_vocabulary_bias
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if has_bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Score hidden states (..., H) against the vocabulary: (..., V)."""
        logits: Tensor = self.decoder(self.transform(hidden))
        return logits if self.bias is None else logits + self.bias


class PretrainingHeads(nn.Module):
    """Masked language model and, where asked for, next sentence prediction."""

    def __init__(self, config: BertConfig, word_embeddings: nn.Embedding, *, nsp: bool) -> None:
        """Make one or both heads under the names of checkpoints."""
        super().__init__()
        self.predictions = MlmPredictions(config, word_embeddings)
        # Not the decoder: it is the embedding table, which has its weights.
        self.predictions.transform.apply(lambda module: initialize(module, config.initializer_range))
        if nsp:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)
            initialize(self.seq_relationship, config.initializer_range)


class BertForMaskedLM(BertHead):
    """The piece that stands at each position."""

    def __init__(self, config: BertConfig) -> None:
        """Make the head, H to V."""
        super().__init__(config)
        self.cls = PretrainingHeads(config, self.bert.embeddings.word_embeddings, nsp=False)
        if config.body.has_one_head:
            # Drawn as a layer that widens, unlike the one of classifiers (AnswerDotAI/ModernBERT).
            initialize(self.head.get_submodule("dense"), config.initializer_range)

    def decoded(self, hidden: Tensor) -> Tensor:
        """Return what the decoder reads (..., E) of hidden (..., H)."""
        states: Tensor = self.cls.predictions.transform(self.transformed(hidden))
        return states

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (..., H), all positions or a selection: logits (..., V)."""
        logits: Tensor = self.cls.predictions(self.transformed(hidden))
        return logits


class BertForSparse(BertForMaskedLM):
    """A text as weights of pieces: the largest score of each at any token, made positive and flattened (SPLADE)."""

    def __init__(self, config: BertConfig, activation: str = "relu") -> None:
        """Make the head, H to V; `activation` is one of `bert.tasks.spec.SPARSE_ACTIVATIONS`."""
        super().__init__(config)
        self.activation = activation

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Weigh the pieces for ids (B, T): (B, V). The mask is 1 at tokens and 0 at padding, (B, T)."""
        scores = self.score(self.bert(input_ids, segment_ids, attention_mask, position_ids))
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask.bool()[..., None], float("-inf"))
        weights = scores.amax(dim=1).relu().float().log1p()
        return weights.log1p() if self.activation == "log1p_relu" else weights


class BertForPreTraining(BertHead):
    """Both pretraining heads on one encoder."""

    needs_pooler = True

    def __init__(self, config: BertConfig) -> None:
        """Make the heads, H to V and H to 2."""
        super().__init__(config)
        self.cls = PretrainingHeads(config, self.bert.embeddings.word_embeddings, nsp=True)

    def score(self, hidden: Tensor) -> Tensor:
        """Score hidden (B, T, H), or a selection of positions (P, H), against the vocabulary."""
        logits: Tensor = self.cls.predictions(hidden)
        return logits

    def score_next_sentence(self, hidden: Tensor) -> Tensor:
        """Score hidden (B, T, H): logits (B, 2)."""
        assert self.bert.pooler is not None
        logits: Tensor = self.cls.seq_relationship(self.bert.pooler(hidden))
        return logits


def pool(hidden: Tensor, mask: Tensor | None, poolings: Sequence[str]) -> Tensor:
    """Return the vectors of hidden (B, T, H) by each of the poolings, side by side: (B, H * number).

    The mask (B, T) is 1 at tokens and 0 at padding, which follows them; None is all tokens.
    """
    if mask is None:
        mask = torch.ones(hidden.shape[:2], device=hidden.device)
    weight = mask.to(hidden.dtype)[..., None]  # (B, T, 1)
    vectors = [_POOLINGS[name](hidden, weight) for name in poolings]
    return torch.cat(vectors, dim=-1) if len(vectors) > 1 else vectors[0]


def _max(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden.masked_fill(weight == 0, float("-inf")).amax(1)


def _weighted_mean(hidden: Tensor, weight: Tensor) -> Tensor:
    nth = weight.float().cumsum(1).to(weight.dtype) * weight
    return (hidden * nth).sum(1) / nth.sum(1)


def _last_token(hidden: Tensor, weight: Tensor) -> Tensor:
    last = weight[..., 0].sum(1).long() - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden, weight: hidden[:, 0],
    "max": _max,
    "mean": lambda hidden, weight: (hidden * weight).sum(1) / weight.sum(1),
    "mean_sqrt_len_tokens": lambda hidden, weight: (hidden * weight).sum(1) / weight.sum(1).sqrt(),
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}
