"""SpanBERT: masked words from their own position, and from the borders of their span."""

from bert.config import BertConfig
from bert.errors import TrainingError
from bert.nn.losses import Loss
from bert.nn.pretraining_heads import SpanBoundaryHead
from training.pretraining.batch import PretrainBatch
from training.pretraining.objectives.base import cross_entropy, encode, select
from training.pretraining.objectives.mlm import MaskedLanguageModel


class SpanBoundary(MaskedLanguageModel):
    """MLM plus the span-boundary objective (Joshi et al. 2019, arXiv 1907.10529), equally weighted.

    The boundary head serves training only: the saved model is a BERT with an MLM head.
    """

    def __init__(self, config: BertConfig) -> None:
        """Make the model and the head with fresh weights."""
        super().__init__(config)
        self.boundary = SpanBoundaryHead(config, self.model.bert.embeddings.word_embeddings)
        self.weights["span_boundary"] = 1.0

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the number of masked positions, twice."""
        return dict.fromkeys(self.weights, len(batch.labels))

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm` and `span_boundary`, both over the masked positions. Raises TrainingError without spans."""
        if batch.spans is None:
            raise TrainingError("the span-boundary objective needs masking by spans")
        hidden = encode(self.model, batch)
        words = self.model.score(select(hidden, batch.masked))
        offsets = batch.masked - batch.spans[:, 0] - 1  # places in the span, from 0
        from_borders = self.boundary(select(hidden, batch.spans), offsets)
        targets = len(batch.labels)
        return {
            "mlm": cross_entropy(words, batch.labels, targets),
            "span_boundary": cross_entropy(from_borders, batch.labels, targets),
        }
