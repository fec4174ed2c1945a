"""The paper's ablation: the next token from those left of it (Devlin et al. 2018, section 5.1)."""

from dataclasses import replace

from torch import Tensor

from bert.config import BertConfig
from bert.nn.attention import TextRows
from bert.nn.heads import BertForMaskedLM
from bert.nn.losses import IGNORED, Loss
from training.pretraining.objectives.base import Objective, encode
from training.pretraining.pretrain_batch import PretrainBatch


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

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `next_token`: all tokens of an example but its first."""
        hidden = encode(self.model, batch, batch.original_ids, causal_mask(batch))
        labels = next_tokens(batch)
        # Rows are nearly full: choosing the positions that have a label would save little.
        total = self.word_loss(hidden[:, :-1].flatten(0, 1), labels.flatten())
        return {"next_token": Loss(total, self.targets(batch)["next_token"])}


def causal_mask(batch: PretrainBatch) -> TextRows:
    """Return rows in which a token looks at itself and to the left, inside its example."""
    return replace(batch.rows, window=(-1, 0))


def next_tokens(batch: PretrainBatch) -> Tensor:
    """Return labels (R, T - 1): the token that follows in the same example, or IGNORED."""
    # An example's first token has position 0, and padding after it has, too.
    follows = batch.real[:, 1:] & (batch.position_ids[:, 1:] > 0)
    return batch.original_ids[:, 1:].masked_fill(~follows, IGNORED)
