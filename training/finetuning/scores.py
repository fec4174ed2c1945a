"""Held-out data: a model's logits for it, the loss of training on them, and scores in memory and in words."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert.encoding import Encoding
from training.engine.batch_order import by_length
from training.engine.distributed import Processes, is_sharded
from training.engine.progress import format_scores
from training.labelled.sources import Source
from training.report.checks import result_warnings
from training.report.error_analysis import Baseline, DevFile
from training.settings import BEST, FinetuneSettings
from training.tasks.base import Evaluation, Feature, FinetuneTask, Floats, Predict, collate, padded

EVAL_BATCH_TOKENS = 8192
FEATURES_AT_ONCE = 64
CPU = torch.device("cpu")
logger = logging.getLogger(__name__)


@torch.no_grad()
def predict(
    model: nn.Module, encodings: Sequence[Encoding], task: FinetuneTask, processes: Processes
) -> list[Floats]:
    """Return the task's outputs for each encoding, in order, in float32.

    Several `processes`, which give the same encodings, share the batches.
    """
    was_training = model.training
    model.eval()
    found: list[tuple[int, Floats]] = []
    batches = list(by_length([len(e) for e in encodings], EVAL_BATCH_TOKENS))
    for first in range(0, len(batches), processes.world):
        number = first + processes.rank
        # A process without a batch of its own computes the last one: those of a model in parts wait for one another.
        indices = batches[min(number, len(batches) - 1)]
        chosen = [encodings[i] for i in indices]
        rows = [Feature((encoding,), None) for encoding in chosen]
        batch = collate(rows, task.tokenizer.pad_id, processes.device)
        logits = task.logits(model, batch).float().cpu().numpy()
        if number < len(batches):
            found += zip(indices.tolist(), task.outputs(logits, chosen), strict=True)
    model.train(was_training)
    if is_sharded(model):
        model.reshard()  # what stays gathered would be read again when the weights have changed: best ones, averages
    return [logits for _, logits in sorted(processes.gather(found), key=lambda item: item[0])]


def predictor(trained: nn.Module, task: FinetuneTask, processes: Processes) -> Predict:
    """Return the function that gives a task its logits, in float32 whatever the training precision."""
    return lambda rows: predict(trained, rows, task, processes)


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


def score_base(
    settings: FinetuneSettings, task: FinetuneTask, model: nn.Module, dev: list[Source], processes: Processes
) -> Path:
    """Score the base as it is and write only its `task.json`: nothing was trained."""
    files = score_files(task, predictor(model.to(processes.device), task, processes), dev)
    for line in result_warnings(files, settings.metric or task.metric, []):
        logger.warning("warning: %s", line)
    logger.info("%s", format_scores(task.spec.scores))
    folder = settings.output_dir / BEST
    if processes.leads:
        folder.mkdir(parents=True, exist_ok=True)
        task.spec.write(folder)
    processes.wait()
    return folder


def score_files(task: FinetuneTask, predict: Predict, sources: Sequence[Source]) -> list[DevFile]:
    """Evaluate held-out files, and describe them as `conclude` does."""
    return conclude(task, sources, [task.evaluate(predict, source.examples) for source in sources])


def conclude(
    task: FinetuneTask, sources: Sequence[Source], found: Sequence[Evaluation], limit: int | None = None
) -> list[DevFile]:
    """Tune the task on all files together, and put their scores into its description.

    `limit` is the number of examples of each file that were evaluated; None is all.
    """
    task.spec = replace(task.spec, **task.tune(found))
    files = [
        dev_file(source.name, task.rescore(each), task.baseline(source.examples))
        for source, each in zip(sources, found, strict=True)
    ]
    scores = {file.name: dict(file.scores) for file in files}
    counts = {source.name: len(source.examples[:limit]) for source in sources}
    task.spec = replace(task.spec, scores=scores, counts=counts)
    return files


def beside_baseline(file: DevFile, metric: str) -> str:
    """Return a line with a file's deciding score and the baseline's."""
    reached, baseline = file.scores.get(metric), file.baseline
    score = f"{file.name}: {metric} {'is not a number' if reached is None else f'{reached:.4f}'}"
    if baseline is None or metric not in baseline.scores:
        return score
    return f"{score}; the baseline ({baseline.rule}) has {baseline.scores[metric]:.4f}"


def dev_file(name: str, found: Evaluation, baseline: Baseline) -> DevFile:
    """Return a file's scores, to four decimals. A score that is not a number is left out with a warning: JSON has no NaN."""
    if missing := [key for key, value in found.scores.items() if math.isnan(value)]:
        logger.warning(
            "%s: %s is not a number: all predictions or all labels are alike", name, ", ".join(missing)
        )
    scores = {key: round(value, 4) for key, value in found.scores.items() if key not in missing}
    return DevFile(name, scores, found.findings, baseline)
