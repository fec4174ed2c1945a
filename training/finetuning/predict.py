"""A model's logits for many encodings, in batches of like length."""

from collections.abc import Sequence

import torch
from torch import nn

from bert.encoding import Encoding
from training.core.batches import by_length
from training.core.distributed import Processes
from training.tasks.base import Feature, Floats, collate

EVAL_BATCH_TOKENS = 8192


@torch.no_grad()
def predict(
    model: nn.Module,
    encodings: Sequence[Encoding],
    pad_id: int,
    device: torch.device,
    processes: Processes | None = None,
) -> list[Floats]:
    """Return the logits of each encoding, in order, in float32: (K,), or (T, K) of a head that scores tokens.

    Several `processes`, which give the same encodings, share the batches.
    """
    was_training = model.training
    model.eval()
    found: list[tuple[int, Floats]] = []
    batches = list(by_length([len(e) for e in encodings], EVAL_BATCH_TOKENS))
    for number in processes.share(batches) if processes else range(len(batches)):
        indices = batches[number]
        batch = collate([Feature((encodings[i],), None) for i in indices], pad_id, device)
        logits = model(batch.input_ids, batch.segment_ids, batch.attention_mask).float().cpu().numpy()
        for row, i in zip(logits, indices.tolist(), strict=True):
            found.append((i, row[: len(encodings[i])] if logits.ndim == 3 else row))
    model.train(was_training)
    everything = processes.gather(found) if processes else found
    return [logits for _, logits in sorted(everything, key=lambda item: item[0])]
