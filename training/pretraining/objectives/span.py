"""SpanBERT: masked words from their own position, and from the borders of their span."""

from typing import ClassVar

from torch import Tensor

from bert.config import BertConfig
from bert.errors import TrainingError
from bert.nn.losses import Loss, cross_entropy
from bert.nn.pretraining_heads import SpanBoundaryHead
from training.pretraining.objectives.base import encode, select
from training.pretraining.objectives.mlm import MaskedLanguageModel
from training.pretraining.pretrain_batch import PretrainBatch


class SpanBoundary(MaskedLanguageModel):
    """MLM plus the span-boundary objective (Joshi et al. 2019, arXiv 1907.10529), equally weighted.

    Tokens of spans at the edge of the text have no boundary loss: there is no token of text beyond. The boundary head
    serves training only: the saved model is a BERT with an MLM head.
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

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm` and `span_boundary`. Raises TrainingError for a batch without spans."""
        if batch.bounded is None or batch.borders is None:
            raise TrainingError("the span-boundary objective needs masking by spans")
        hidden = encode(self.model, batch)
        words = self.word_loss(select(hidden, batch.masked), batch.labels)
        places = batch.masked[batch.bounded] - batch.borders[:, 0] - 1  # in the span, from 0
        labels = batch.labels[batch.bounded]
        from_borders = self.boundary_loss(select(hidden, batch.borders), places, labels)
        return {"mlm": Loss(words, len(batch.labels)), "span_boundary": Loss(from_borders, len(labels))}
