"""Small random examples and models for the tests of objectives."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bert.config import BertConfig
from bert.nn.losses import Loss
from tests.support.bert_reference import fill, small_config
from training.pretraining.examples.base import MaskedExample
from training.pretraining.objectives.base import Objective
from training.pretraining.pretrain_batch import PretrainBatch, collate

MAX_TOKENS = 24
CLS, SEP, MASK, PAD = 1, 2, 3, 0
FIRST_WORD = 4


def config(seed: int = 0, **changes: Any) -> BertConfig:
    """Return a small configuration with MAX_TOKENS positions and no dropout."""
    fixed = {
        "max_position_embeddings": MAX_TOKENS,
        "pad_token_id": PAD,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return small_config(seed, **{**fixed, **changes})


def example(rng: np.random.Generator, vocab_size: int, tokens: int, pair_label: int = -1) -> MaskedExample:
    """Return [CLS] A [SEP] B [SEP] of so many tokens, with one to three spans masked."""
    original = rng.integers(FIRST_WORD, vocab_size, tokens).astype(np.int32)
    original[0], original[-1] = CLS, SEP
    middle = int(rng.integers(1, tokens - 1)) if tokens > 5 else tokens - 1
    original[middle] = SEP
    special = np.isin(np.arange(tokens), [0, middle, tokens - 1])
    words = np.flatnonzero(~special)
    chosen: dict[int, tuple[int, int]] = {}
    for _ in range(int(rng.integers(1, 4))):
        first = last = int(rng.choice(words))
        while last + 1 in words and last - first < 2:
            last += 1
        if not any(i in chosen for i in range(first - 1, last + 2)):
            chosen |= {i: (first, last) for i in range(first, last + 1)}
    positions = np.array(sorted(chosen), np.int32)
    ids = original.copy()
    ids[positions] = MASK
    return MaskedExample(
        ids=ids,
        segment_ids=(np.arange(tokens) > middle).astype(np.int8),
        positions=positions,
        labels=original[positions],
        pair_label=pair_label,
        spans=np.array([chosen[i] for i in positions], np.int32),
        special=special,
        original=original,
    )


def examples(seed: int, vocab_size: int, lengths: list[int], pairs: bool = True) -> list[MaskedExample]:
    """Return an example of each length."""
    rng = np.random.default_rng(seed)
    return [example(rng, vocab_size, n, int(rng.integers(2)) if pairs else -1) for n in lengths]


def batch(seed: int, vocab_size: int, lengths: list[int], packed: bool = False) -> PretrainBatch:
    """Return a batch of random examples of these lengths."""
    return collate(examples(seed, vocab_size, lengths), PAD, MAX_TOKENS, packed)


def filled(objective: Objective, seed: int = 0) -> Objective:
    """Return the objective with a random value for every weight and bias, set to train."""
    fill(objective, seed)
    return objective.train()


def weighted(objective: Objective, losses: dict[str, Loss]) -> torch.Tensor:
    """Return the loss to minimise over a batch that is a whole step."""
    return torch.stack([objective.weights[name] * loss.mean for name, loss in losses.items()]).sum()


def gradients(objective: Objective, batch: PretrainBatch) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the mean losses of a batch, and the gradients of their weighted sum."""
    objective.zero_grad()
    losses = objective(batch)
    weighted(objective, losses).backward()
    found = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    return {name: float(loss.mean.detach()) for name, loss in losses.items()}, found


def without_spans(examples: list[MaskedExample]) -> list[MaskedExample]:
    """Return the examples as another masking than by spans gives them."""
    return [replace(e, spans=None) for e in examples]
