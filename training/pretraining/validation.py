"""Scores of masked words and pairs on held-out text.

They are the same for every recipe: plain masking of 15% of the tokens, whatever the model was trained with.
N examples, M masked positions, V vocabulary.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bert.nn.losses import IGNORED
from training.engine.batch_order import by_length
from training.engine.distributed import Processes
from training.pretraining.examples.base import MaskedExample
from training.pretraining.objectives.base import Objective
from training.pretraining.pretrain_batch import PretrainBatch, collate

BATCH_TOKENS = 8192


@torch.no_grad()
def evaluate(
    objective: Objective,
    examples: Sequence[MaskedExample],
    pad_id: int,
    processes: Processes | None = None,
    *,
    bf16: bool = False,
) -> dict[str, float]:
    """Score examples without dropout on the objective's device, and restore its mode.

    Return what the heads and the examples allow: of words `mlm_loss` (mean over masked positions, nats), `mlm_accuracy` and
    `perplexity` (exp of the loss), and `pair_accuracy` (of next sentence prediction, or of sentence order).

    No random number is drawn, so the run continues as without the evaluation. Several `processes`, which give the same
    examples, share the batches and return the same scores.
    """
    device, was_training = next(objective.parameters()).device, objective.training
    objective.eval()
    lengths = [len(example.ids) for example in examples]
    sums = torch.zeros(5, dtype=torch.float64, device=device)  # loss, right, positions; right, pairs
    batches = list(by_length(lengths, BATCH_TOKENS))
    rank, world = (processes.rank, processes.world) if processes else (0, 1)
    for first in range(0, len(batches), world):
        # A process without a batch of its own computes the last one: those of a model in parts wait for one another.
        indices = batches[min(first + rank, len(batches) - 1)]
        chosen = [examples[i] for i in indices]
        batch = collate(chosen, pad_id, max(lengths[i] for i in indices), packed=False).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            words, pairs = objective.logits(batch)
            found = torch.cat([_words(words, batch), _pairs(pairs, batch)])
        if first + rank < len(batches):
            sums += found
    if processes:
        processes.sum_on_device(sums)
    objective.train(was_training)
    loss, right, positions, pairs_right, pairs = sums.tolist()
    scores = {"mlm_loss": loss / positions, "mlm_accuracy": right / positions} if positions else {}
    if pairs:
        scores["pair_accuracy"] = pairs_right / pairs
    if positions:
        scores["perplexity"] = math.exp(min(scores["mlm_loss"], 700.0))
    return scores


def unigram_entropy(examples: Sequence[MaskedExample]) -> float:
    """Return the entropy of the tokens in nats: the lowest loss of a model that does not read the context.

    Estimated after Chao & Shen (2003), because a sample shows only a part of the rare words. 0 without examples.
    """
    if not examples:
        return 0.0
    tokens = np.concatenate([example.original[~example.special] for example in examples])
    counts = np.bincount(tokens)
    counts = counts[counts > 0]
    once = min(int((counts == 1).sum()), len(tokens) - 1)
    shares = (1 - once / len(tokens)) * counts / len(tokens)  # the rest belongs to unseen words
    # Probability that each was seen at all.
    seen = -np.expm1(len(tokens) * np.log1p(-np.minimum(shares, 1 - 1e-12)))
    return float(-(shares * np.log(shares) / seen).sum())


def _words(logits: Tensor | None, batch: PretrainBatch) -> Tensor:
    """Return summed loss, right guesses and number of the masked positions (3,); zeros without an MLM head."""
    if logits is None or not len(batch.labels):
        return torch.zeros(3, dtype=torch.float64, device=batch.labels.device)
    loss = F.cross_entropy(logits.float(), batch.labels, reduction="none").double().sum()
    right = (logits.argmax(-1) == batch.labels).sum()
    return torch.stack([loss, right.double(), torch.full_like(loss, len(batch.labels))])


def _pairs(logits: Tensor | None, batch: PretrainBatch) -> Tensor:
    """Return right guesses and number of the pairs (2,); zeros where there are none."""
    if logits is None:
        return torch.zeros(2, dtype=torch.float64, device=batch.labels.device)
    known = batch.pair_labels != IGNORED
    right = (logits.argmax(-1) == batch.pair_labels) & known
    return torch.stack([right.sum().double(), known.sum().double()])
