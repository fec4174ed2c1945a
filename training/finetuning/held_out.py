"""Loss on held-out data, from the logits that its evaluation computes anyway."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert.encoding import Encoding
from training.tasks.base import Feature, FinetuneTask, Floats, Predict, collate, padded

FEATURES_AT_ONCE = 64
CPU = torch.device("cpu")


class HeldOutLoss:
    """The loss of training on one held-out file. Its examples are encoded once."""

    def __init__(self, task: FinetuneTask, examples: Sequence[Any]) -> None:
        """Encode the examples, none where the run's loss does not read what they state."""
        self.task = task
        self.features = task.features(examples) if task.has_loss_on(examples) else []

    def mean(self, logits: "RecordedLogits") -> float:
        """Return the mean over all targets; NaN where there are none."""
        total, targets = 0.0, 0
        for start in range(0, len(self.features), FEATURES_AT_ONCE):
            part = self.features[start : start + FEATURES_AT_ONCE]
            batch = collate(part, self.task.tokenizer.pad_id, CPU)
            loss = self.task.loss(logits.of(part, batch.input_ids.shape[1]), batch)
            total, targets = total + float(loss.total), targets + loss.targets
        return total / targets if targets else math.nan


class RecordedLogits:
    """A `Predict` that keeps the logits of every encoding that it was asked for."""

    def __init__(self, predict: Predict) -> None:
        """Ask `predict`."""
        self._predict = predict
        self._found: dict[tuple[bytes, bytes], Floats] = {}

    def __call__(self, rows: Sequence[Encoding]) -> list[Floats]:
        """Return the logits of each encoding, in order."""
        logits = self._predict(rows)
        self._found.update(zip(map(_key, rows), logits, strict=True))
        return logits

    def of(self, features: Sequence[Feature], tokens: int) -> Tensor:
        """Return the logits of all rows of the features, as the model gives them for one batch: (R, K) or (R, T, K)."""
        rows = [self._found[_key(encoding)] for feature in features for encoding in feature.encodings]
        return torch.from_numpy(np.stack(rows)) if rows[0].ndim == 1 else padded(rows, tokens)


def _key(encoding: Encoding) -> tuple[bytes, bytes]:
    return encoding.ids.tobytes(), encoding.segment_ids.tobytes()
