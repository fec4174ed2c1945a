"""A model's logits for many encodings, in batches of like length."""

from collections.abc import Sequence

import torch
from torch import nn

from bert.encoding import Encoding
from training.core.batches import by_length
from training.tasks.base import Feature, Floats, collate

EVAL_BATCH_TOKENS = 8192


@torch.no_grad()
def predict(
    model: nn.Module, encodings: Sequence[Encoding], pad_id: int, device: torch.device
) -> list[Floats]:
    """Return the logits of each encoding, in order, in float32: (K,), or (T, K) of a head that scores tokens."""
    was_training = model.training
    model.eval()
    out: list[Floats | None] = [None] * len(encodings)
    for indices in by_length([len(e) for e in encodings], EVAL_BATCH_TOKENS):
        batch = collate([Feature((encodings[i],), None) for i in indices], pad_id, device)
        logits = model(batch.input_ids, batch.segment_ids, batch.attention_mask).float().cpu().numpy()
        for row, i in enumerate(indices):
            out[i] = logits[row, : len(encodings[i])] if logits.ndim == 3 else logits[row]
    model.train(was_training)
    return [logits for logits in out if logits is not None]
