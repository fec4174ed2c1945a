"""The mean of fine-tuned checkpoints, written whole or as an adapter: what `bert-average` does."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.weights import Checkpoint, read_checkpoint, read_weights
from bert.errors import CheckpointError, ConfigError
from bert.files import atomic_dir
from bert.tasks.spec import TaskSpec
from training.averaging.delta import Delta
from training.averaging.settings import AverageSettings
from training.averaging.soup import read_average
from training.engine.checkpoints import require_writable
from training.engine.distributed import Processes, pick_device
from training.engine.progress import format_scores
from training.finetuning.model import name_base, of_checkpoint, save_whole
from training.finetuning.scores import predictor, score_files
from training.labelled.sources import Source, read_sources
from training.settings import FinetuneSettings
from training.tasks import task_class

logger = logging.getLogger(__name__)


def average(settings: AverageSettings, command: str = "") -> Path:
    """Write the average and return its folder; where there is dev data, `task.json` has the scores of what is written.

    Raises CheckpointError for checkpoints that do not belong together, DataError for data that cannot be read.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    _check_output(settings)
    mean = read_average(settings.checkpoints)
    commands = [*mean.spec.command.splitlines(), *([command] if command else [])]
    mean = replace(mean, spec=replace(mean.spec, command="\n".join(commands)))
    dev = _read_dev(settings, mean.spec)
    if settings.adapter_rank is not None:
        base = settings.base or _recorded_base(mean.spec)
        delta = _delta(mean, base, settings.adapter_rank)
        mean = replace(mean, spec=replace(mean.spec, base=name_base(base)))
    if dev:
        mean = replace(mean, spec=_scored(mean, dev, settings, "the mean"))
    with atomic_dir(settings.output_dir) as aside:
        if settings.adapter_rank is None:
            model, task = of_checkpoint(mean)
            save_whole(aside, model, task)
            mean.spec.write(aside)
        else:
            delta.write(aside, base)
            mean.spec.write(aside)
            if dev:  # what is scored is what will be read
                _scored(read_checkpoint(aside, base), dev, settings, "the adapter").write(aside)
    size = sum(file.stat().st_size for file in settings.output_dir.iterdir())
    logger.info("%s: %.1f MB", settings.output_dir, size / 1e6)
    return settings.output_dir


def _check_output(settings: AverageSettings) -> None:
    """Raise ConfigError where the result would take the place of something else."""
    folder = settings.output_dir
    require_writable(folder)
    if any(folder.resolve() == each.resolve() for each in settings.checkpoints):
        raise ConfigError(f"output_dir ({folder}) is one of the checkpoints")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "task.json").is_file():
        raise ConfigError(f"output_dir ({folder}) holds files that are no checkpoint: give another one")
    if settings.base and settings.adapter_rank is None:
        raise ConfigError("base is what an adapter belongs to: give adapter_rank too, or leave base out")


def _read_dev(settings: AverageSettings, spec: TaskSpec) -> list[Source]:
    """Read the held-out files as bert-finetune does."""
    return read_sources(settings.dev, _reading(settings, spec), spec.labels or None) if settings.dev else []


def _reading(settings: AverageSettings, spec: TaskSpec) -> FinetuneSettings:
    """Return the settings of the runs that decide how held-out data is read and scored."""
    values: dict[str, Any] = {
        "task": spec.task,
        "problem": spec.problem_type,
        "long_texts": spec.long_texts,
        "output_dir": settings.output_dir,
        "dev": settings.dev,
    }
    # Past the sources of settings: the environment is for bert-finetune.
    return FinetuneSettings.model_construct(**values)


def _recorded_base(spec: TaskSpec) -> str:
    if not (name := spec.base.get("name")):
        raise CheckpointError("the checkpoints record no base, and an adapter is the difference to one")
    commit = spec.base.get("commit")
    return f"{name}@{commit}" if commit else name


def _delta(mean: Checkpoint, base: str, rank: int) -> Delta:
    """Return the difference to the base, which must have the weights that the training began with."""
    folder = resolve_base(base, mean.spec.base.get("sha256"))
    delta = Delta(
        read_weights(folder), mean.weights, mean.config, task_class(mean.spec.task).architecture, rank
    )
    parts = ", ".join(f"{part} {100 * share:.1f}%" for part, share in delta.kept_by_part().items())
    logger.info("rank %d keeps of the squared difference: %s", delta.rank, parts)
    return delta


def _scored(checkpoint: Checkpoint, dev: Sequence[Source], settings: AverageSettings, name: str) -> TaskSpec:
    """Return the checkpoint's description with its scores, and with thresholds that are tuned anew."""
    model, task = of_checkpoint(checkpoint)
    task.configure(_reading(settings, task.spec), {}, 0)
    alone = Processes(0, 1, pick_device(settings.device))
    score_files(task, predictor(model.to(alone.device), task, alone), dev)
    logger.info("%s: %s", name, format_scores(task.spec.scores))
    data = task.spec.data | {"dev": [file.labelled.record() for file in settings.dev]}
    return replace(task.spec, data=data)
