"""The masked words, and from a text's [CLS] all of its words (after DupMAE, Liu et al. 2022, arXiv 2211.08769).

Masked words alone teach [CLS] nothing, and whether a pair belongs together is one bit a pair. Here [CLS] answers for every
word of its text, so that it learns from the first step on, and with it attention and the embeddings.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert.config import BertConfig
from bert.nn.heads import BertForMaskedLM
from bert.nn.losses import Loss
from training.corpus.shards import Corpus
from training.pretraining.batch import PretrainBatch
from training.pretraining.objectives.base import Objective, cross_entropy, encode, select

FREQUENT = 1e-4
"""Share of a corpus' tokens above which a piece counts less: by sqrt(FREQUENT / share), as word2vec drops frequent words
(Mikolov et al. 2013, arXiv 1310.4546). "the" is in every text and says nothing about it."""
COUNTED_TOKENS = 20_000_000
"""Of a corpus, at most: shares of 1e-4 are known well enough from so many."""


class MaskedLanguageModelWithBagOfWords(Objective):
    """Tell the masked words, and each text's words from its [CLS] by the same head."""

    architecture = "BertForMaskedLM"
    piece_weights: Tensor

    def __init__(self, config: BertConfig, piece_weights: NDArray[np.float32]) -> None:
        """Make the model with fresh weights; `piece_weights` (V,) say how much each piece of a text counts."""
        super().__init__()
        self.model = BertForMaskedLM(config)
        self.weights = {"mlm": 1.0, "bow": 1.0}
        weights = torch.zeros(config.vocab_size)
        weights[: len(piece_weights)] = torch.from_numpy(piece_weights)
        self.register_buffer("piece_weights", weights, persistent=False)

    def masked_logits(self, batch: PretrainBatch) -> Tensor:
        """Return logits (M, V); the head runs at masked positions only."""
        return self.model.score(select(encode(self.model, batch), batch.masked))

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of texts."""
        return {"mlm": len(batch.labels), "bow": batch.examples}

    def losses(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return `mlm` and `bow`: per text the cross-entropy with its distinct pieces, by their weights."""
        hidden = encode(self.model, batch)
        logits = self.model.score(select(hidden, torch.cat([batch.masked, batch.firsts])))
        masked, texts = logits[: len(batch.masked)], logits[len(batch.masked) :]
        wanted = self.wanted(batch)
        bag = -(wanted * texts.float().log_softmax(-1)).sum()
        return {
            "mlm": cross_entropy(masked, batch.labels, len(batch.labels)),
            "bow": Loss(bag, batch.examples),
        }

    def wanted(self, batch: PretrainBatch) -> Tensor:
        """Return the distribution over pieces (N, V) that each [CLS] is to give; all zeros for a text of no weight."""
        order = batch.firsts.argsort()
        places = torch.arange(batch.real.numel(), device=batch.firsts.device)
        owners = order[torch.searchsorted(batch.firsts[order], places, right=True).sub(1).clamp(min=0)]
        real = batch.real.flatten()
        shape = (batch.examples, len(self.piece_weights))
        present = torch.zeros(shape, device=batch.firsts.device)
        present[owners[real], batch.original_ids.flatten()[real]] = 1.0
        weighted = present * self.piece_weights
        return weighted / weighted.sum(-1, keepdim=True).clamp(min=1e-9)


def piece_weights(counts: NDArray[np.int64], plain: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return how much each piece counts (V,), from how often it was seen; but for the `plain` ones that were, 0."""
    seen = plain[counts[plain] > 0]
    weights = np.zeros(len(counts), np.float32)
    weights[seen] = np.minimum(1.0, np.sqrt(FREQUENT * counts[seen].sum() / counts[seen]))
    return weights


def piece_counts(corpus: Corpus) -> NDArray[np.int64]:
    """Return how often each piece is in the training text (V,), in the first COUNTED_TOKENS of it."""
    counts, left = np.zeros(corpus.vocab_size, np.int64), COUNTED_TOKENS
    for document in corpus.documents("train"):
        tokens = document.tokens[:left]
        counts += np.bincount(tokens, minlength=len(counts))
        left -= len(tokens)
        if left <= 0:
            break
    return counts
