"""Language models: masked words, pairs of texts, spans, and the next token."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from bert.config import BertConfig
from bert.errors import TrainingError
from bert.nn.attention import TextRows
from bert.nn.heads import BertForMaskedLM, BertForPreTraining
from bert.nn.losses import IGNORED, cross_entropy
from bert.nn.pretraining_heads import SpanBoundaryHead
from training.pretraining.objectives.base import Objective, encode, select
from training.pretraining.pretrain_batch import PretrainBatch


class MaskedLanguageModel(Objective):
    """Predict the masked words (RoBERTa, arXiv 1907.11692, and all that differ from it in masking only)."""

    architecture = "BertForMaskedLM"
    model: BertForMaskedLM

    def __init__(self, config: BertConfig) -> None:
        """Make the model with fresh weights."""
        super().__init__()
        self.model = BertForMaskedLM(config)
        self.weights = {"mlm": 1.0}

    def logits(self, batch: PretrainBatch) -> tuple[Tensor, None]:
        """Return logits (M, V) of the words; the head runs at masked positions only."""
        return self.model.score(select(encode(self.model, batch), batch.masked)), None

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the number of masked positions."""
        return {"mlm": len(batch.labels)}

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return `mlm`."""
        return {"mlm": self.word_loss(select(encode(self.model, batch), batch.masked), batch.labels)}


class MaskedLanguageModelWithPairs(Objective):
    """Predict the masked words, and a pair's label from its [CLS].

    The label is whether B follows A (BERT, arXiv 1810.04805) or whether the two are in order (ALBERT, 1909.11942).
    """

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig, pair: str = "nsp") -> None:
        """Make the model with fresh weights; `pair` names the second loss."""
        super().__init__()
        self.model: BertForPreTraining = BertForPreTraining(config)
        self.pair = pair
        self.weights = {"mlm": 1.0, pair: 1.0}

    def logits(self, batch: PretrainBatch) -> tuple[Tensor, Tensor]:
        """Return logits (M, V) of the words and (N, 2) of the pairs."""
        hidden = encode(self.model, batch)
        return self.model.score(select(hidden, batch.masked)), self._pair_logits(hidden, batch)

    def _pair_logits(self, hidden: Tensor, batch: PretrainBatch) -> Tensor:
        firsts = select(hidden, batch.firsts)[:, None]  # (N, 1, H): the pooler reads the first token of each
        return self.model.score_next_sentence(firsts)

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of pairs."""
        return {"mlm": len(batch.labels), self.pair: batch.pairs}

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return `mlm` and the pair's loss. Raises TrainingError for a batch without pairs."""
        if not batch.pairs:
            raise TrainingError(
                f"the objective has a loss {self.pair!r}, but the examples are no labelled pairs"
            )
        hidden = encode(self.model, batch)
        pairs = cross_entropy(self._pair_logits(hidden, batch), batch.pair_labels, count=batch.pairs).total
        return {"mlm": self.word_loss(select(hidden, batch.masked), batch.labels), self.pair: pairs}


class SpanBoundary(MaskedLanguageModel):
    """MLM plus the span-boundary objective (Joshi et al. 2019, arXiv 1907.10529), equally weighted.

    Words of a span are predicted from their own position, and from the span's borders. Tokens of spans at the edge of the
    text have no boundary loss: there is no token of text beyond. The boundary head serves training only: the saved model is
    a BERT with an MLM head.
    """

    fused: ClassVar = ("word_loss", "boundary_loss")

    def __init__(self, config: BertConfig) -> None:
        """Make the model and the head with fresh weights."""
        super().__init__(config)
        self.boundary = SpanBoundaryHead(config, self.model.bert.embeddings.word_embeddings)
        self.weights["span_boundary"] = 1.0

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions, and of those in a span with a border on either side."""
        return {"mlm": len(batch.labels), "span_boundary": 0 if batch.bounded is None else len(batch.bounded)}

    def boundary_loss(self, states: Tensor, places: Tensor, labels: Tensor) -> Tensor:
        """Return the summed cross entropy of words (P,), told from states (P, 2, H) and places in their spans (P,)."""
        return cross_entropy(self.boundary(states, places), labels, count=len(labels)).total

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return `mlm` and `span_boundary`. Raises TrainingError for a batch without spans."""
        if batch.bounded is None or batch.borders is None:
            raise TrainingError("the span-boundary objective needs masking by spans")
        hidden = encode(self.model, batch)
        words = self.word_loss(select(hidden, batch.masked), batch.labels)
        places = batch.masked[batch.bounded] - batch.borders[:, 0] - 1  # in the span, from 0
        labels = batch.labels[batch.bounded]
        return {
            "mlm": words,
            "span_boundary": self.boundary_loss(select(hidden, batch.borders), places, labels),
        }


class LeftToRight(Objective):
    """Predict the next token at every token but the last, without masking. No token sees those right of it.

    The saved model is a plain BERT, which reads both ways again when it is fine-tuned.
    """

    architecture = "BertForMaskedLM"
    predicts_all = True

    def __init__(self, config: BertConfig) -> None:
        """Make the model with fresh weights."""
        super().__init__()
        self.model = BertForMaskedLM(config)
        self.weights = {"next_token": 1.0}

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the number of tokens that follow another one."""
        return {"next_token": batch.tokens - batch.examples}

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return `next_token`: all tokens of an example but its first."""
        hidden = encode(self.model, batch, batch.original_ids, causal_mask(batch))
        labels = next_tokens(batch)
        # Rows are nearly full: choosing the positions that have a label would save little.
        return {"next_token": self.word_loss(hidden[:, :-1].flatten(0, 1), labels.flatten())}


def causal_mask(batch: PretrainBatch) -> TextRows:
    """Return rows in which a token looks at itself and to the left, inside its example."""
    return replace(batch.rows, window=(-1, 0))


def next_tokens(batch: PretrainBatch) -> Tensor:
    """Return labels (R, T - 1): the token that follows in the same example, or IGNORED."""
    # An example's first token has position 0, and padding after it has, too.
    follows = batch.real[:, 1:] & (batch.position_ids[:, 1:] > 0)
    return batch.original_ids[:, 1:].masked_fill(~follows, IGNORED)
