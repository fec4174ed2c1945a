"""The paper's objectives: masked words, and the relation of a pair of texts."""

from torch import Tensor

from bert.config import BertConfig
from bert.errors import TrainingError
from bert.nn.heads import BertForMaskedLM, BertForPreTraining
from bert.nn.losses import Loss, cross_entropy
from training.pretraining.objectives.base import Objective, encode, select
from training.pretraining.pretrain_batch import PretrainBatch


class MaskedLanguageModel(Objective):
    """Predict the masked words (RoBERTa, arXiv 1907.11692, and all that differ from it in masking only)."""

    architecture = "BertForMaskedLM"

    def __init__(self, config: BertConfig) -> None:
        """Make the model with fresh weights."""
        super().__init__()
        self.model = BertForMaskedLM(config)
        self.weights = {"mlm": 1.0}

    def masked_logits(self, batch: PretrainBatch) -> Tensor:
        """Return logits (M, V); the head runs at masked positions only."""
        return self.model.score(select(encode(self.model, batch), batch.masked))

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the number of masked positions."""
        return {"mlm": len(batch.labels)}

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm`."""
        states = select(encode(self.model, batch), batch.masked)
        return {"mlm": Loss(self.word_loss(states, batch.labels), len(batch.labels))}


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

    def masked_logits(self, batch: PretrainBatch) -> Tensor:
        """Return logits (M, V)."""
        return self.logits(batch)[0]

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

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm` and the pair's loss. Raises TrainingError for a batch without pairs."""
        if not batch.pairs:
            raise TrainingError(
                f"the objective has a loss {self.pair!r}, but the examples are no labelled pairs"
            )
        hidden = encode(self.model, batch)
        pairs = self._pair_logits(hidden, batch)
        words = self.word_loss(select(hidden, batch.masked), batch.labels)
        return {
            "mlm": Loss(words, len(batch.labels)),
            self.pair: cross_entropy(pairs, batch.pair_labels, count=batch.pairs),
        }
