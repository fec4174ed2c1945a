"""The runs of a comparison: every checkpoint on every task with every seed, checked before the first one starts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.settings import error_lines
from training.evaluation.settings import EvaluateSettings
from training.finetuning.model import base_folder
from training.settings import FinetuneSettings


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """One fine-tuning run."""

    row: str
    task: str
    seed: int
    settings: FinetuneSettings

    def __str__(self) -> str:
        return f"{self.row} on {self.task}, seed {self.seed}"


def plan(settings: EvaluateSettings) -> list[EvaluationRun]:
    """Return the runs, seeds outermost: a comparison cut short has fewer seeds, not fewer checkpoints.

    Raises ConfigError or CheckpointError for anything that a run could not start with.
    """
    rows = [read_checkpoint(entry) for entry in settings.checkpoints]
    tasks = {name: read_task(name, given) for name, given in settings.tasks.items()}
    row_folders, task_folders = _folders([row for row, _ in rows]), _folders(tasks)
    for _, base in rows:
        BertConfig.read(base_folder(base))
    runs = []
    for seed, (row, base), (task, given) in product(settings.seeds, rows, tasks.items()):
        folder = settings.output_dir / "runs" / row_folders[row] / task_folders[task] / f"seed-{seed}"
        values = {**given, **settings.overrides, "base": base, "seed": seed, "output_dir": folder}
        runs.append(EvaluationRun(row, task, seed, _run_settings(task, values)))
    return runs


def read_checkpoint(entry: str) -> tuple[str, str]:
    """Return name and base of "NAME=FOLDER", or of a bare folder, which is its own name."""
    name, sign, base = entry.partition("=")
    return (name, base) if sign and not Path(entry).exists() else (entry, entry)


def read_task(name: str, given: Path | dict[str, Any]) -> dict[str, Any]:
    """Return a task's fine-tuning settings as they are written. Raises ConfigError."""
    if isinstance(given, dict):
        return given
    try:
        values = yaml.safe_load(given.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"task {name!r}: {given} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"task {name!r}: {given} holds no settings of bert-finetune")
    return values


def _run_settings(task: str, values: dict[str, Any]) -> FinetuneSettings:
    if "config" in values:
        raise ConfigError(f"task {task!r} names a `config`, and one settings file cannot name another")
    try:
        settings = FinetuneSettings(**values)
    except ValidationError as error:
        raise ConfigError(f"task {task!r}: {'; '.join(error_lines(error, FinetuneSettings))}") from None
    if not settings.dev:
        raise ConfigError(f"task {task!r} names no dev files: there is nothing to score on")
    return settings


def _folders(names: Iterable[str]) -> dict[str, str]:
    """Return a folder for each name. Raises ConfigError for names that would share one."""
    folders: dict[str, str] = {}
    for name in names:
        folder = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "-"
        twin = next((other for other, taken in folders.items() if taken == folder), None)
        if twin is not None or name in folders:
            raise ConfigError(f"{twin!r} and {name!r} would share the folder {folder!r}: write NAME=FOLDER")
        folders[name] = folder
    return folders
