"""A model's logits for labelled data, and its scores in memory and in words."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from bert.encoding import Encoding
from training.engine.batch_order import by_length
from training.engine.distributed import Processes
from training.engine.progress import format_scores
from training.labelled.sources import Source
from training.report.checks import result_warnings
from training.report.error_analysis import Baseline, DevFile
from training.settings import BEST, FinetuneSettings
from training.tasks.base import Evaluation, Feature, FinetuneTask, Floats, Predict, collate

EVAL_BATCH_TOKENS = 8192
logger = logging.getLogger(__name__)


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


def predictor(trained: nn.Module, task: FinetuneTask, processes: Processes) -> Predict:
    """Return the function that gives a task its logits, in float32 whatever the training precision."""
    return lambda rows: predict(trained, rows, task.tokenizer.pad_id, processes.device, processes)


def score_base(
    settings: FinetuneSettings, task: FinetuneTask, model: nn.Module, dev: list[Source], processes: Processes
) -> Path:
    """Score the base as it is and write only its `task.json`: nothing was trained."""
    scores, run_predict = {}, predictor(model.to(processes.device), task, processes)
    for source in dev:
        found = task.evaluate(run_predict, source.examples)
        file = dev_file(source.name, found, task.baseline(source.examples))
        scores[source.name] = dict(file.scores)
        for line in result_warnings([file], settings.metric or task.metric, []):
            logger.warning("warning: %s", line)
    counts = {source.name: len(source.examples) for source in dev}
    logger.info("%s", format_scores(scores))
    folder = settings.output_dir / BEST
    if processes.leads:
        folder.mkdir(parents=True, exist_ok=True)
        replace(task.spec, scores=scores, counts=counts).write(folder)
    processes.wait()
    return folder


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
