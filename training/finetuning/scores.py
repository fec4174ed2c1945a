"""Scores of a fine-tuning on files of labelled data, in memory and in words."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from training.core.distributed import Processes
from training.core.progress import format_scores
from training.data.datasets import Source
from training.finetuning.predict import predict
from training.report import DevFile, result_warnings
from training.settings import FinetuneSettings
from training.tasks.base import FinetuneTask, Predict

logger = logging.getLogger(__name__)


def predictor(trained: nn.Module, task: FinetuneTask, processes: Processes) -> Predict:
    """Return what gives a task its logits, in float32 whatever the training precision."""
    return lambda rows: predict(trained, rows, task.tokenizer.pad_id, processes.device, processes)


def score_base(
    settings: FinetuneSettings, task: FinetuneTask, model: nn.Module, dev: list[Source], processes: Processes
) -> Path:
    """Score the base as it is and write only its `task.json`: nothing was trained."""
    scores, run_predict = {}, predictor(model.to(processes.device), task, processes)
    for source in dev:
        found = task.evaluate(run_predict, source.examples)
        scores[source.name] = rounded(source.name, found.scores)
        file = DevFile(source.name, scores[source.name], found.findings, task.baseline(source.examples))
        for line in result_warnings([file], settings.metric or task.metric, []):
            logger.warning("warning: %s", line)
    counts = {source.name: len(source.examples) for source in dev}
    logger.info("%s", format_scores(scores))
    folder = settings.output_dir / "best"
    if processes.leads:
        folder.mkdir(parents=True, exist_ok=True)
        replace(task.spec, scores=scores, counts=counts).write(folder)
    processes.wait()
    return folder


def beside_baseline(file: DevFile, metric: str) -> str:
    """Return a line with a file's deciding score and the baseline's."""
    reached, baseline = file.scores.get(metric), file.baseline
    said = f"{file.name}: {metric} {'is not a number' if reached is None else f'{reached:.4f}'}"
    if baseline is None or metric not in baseline.scores:
        return said
    return f"{said}; the baseline ({baseline.rule}) has {baseline.scores[metric]:.4f}"


def rounded(file: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores with four decimals. What is not a number is left out, with a warning: JSON has no NaN."""
    missing = [name for name, value in scores.items() if math.isnan(value)]
    if missing:
        logger.warning(
            "%s: %s is not a number: all predictions or all labels are alike", file, ", ".join(missing)
        )
    return {name: round(value, 4) for name, value in scores.items() if name not in missing}
