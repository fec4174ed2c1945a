"""The runs of a comparison: every checkpoint on every task with every seed, checked before the first one starts.

`run.json` in the folder of each has its identity, and its scores once it is finished.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bert.checkpoint.weights import file_hashes
from bert.config import BertConfig
from bert.errors import ConfigError, TrainingError
from bert.files import atomic_write
from bert.settings import error_lines
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.engine.trainer import CHECKPOINTS
from training.evaluation.settings import EvaluateSettings
from training.finetuning.model import base_folder, is_random
from training.settings import FinetuneSettings
from training.tasks import make_task

Finetune = Callable[[FinetuneSettings, str], Path]


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


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Scores of a finished run."""

    metric: str
    score: float
    """Mean of the metric over the dev files."""
    dev: dict[str, dict[str, float]]
    test: dict[str, dict[str, float]]


def identity(settings: FinetuneSettings) -> dict[str, Any]:
    """Return everything that decides a run's scores: settings without paths, and the hashes of the checkpoint's files."""
    places = {"config", "base", "output_dir", "threads", "resume", "save_every_steps"}
    hashes = file_hashes(base_folder(settings.base))
    needed = ("config.json", "tokenizer", "vocab", "model")
    random = is_random(settings.base)
    files = {name: value for name, value in hashes.items() if name.startswith(needed[: 3 if random else 4])}
    return {**settings.model_dump(mode="json", exclude=places), "random": random, "base_files": files}


def finished(run: EvaluationRun) -> EvaluationResult | None:
    """Return the result of an earlier run, None if there is none or it is unfinished.

    Raises TrainingError where its folder holds a run with other settings or another checkpoint.
    """
    file = run.settings.output_dir / "run.json"
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    now, then = identity(run.settings), content["identity"]
    changed = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    if changed and not content["result"] and not (run.settings.output_dir / CHECKPOINTS).is_dir():
        return None  # it never started, so nothing is lost
    if changed:
        raise TrainingError(
            f"{run.settings.output_dir} holds a run of {run} with other values ({', '.join(sorted(changed))}); "
            "give another output_dir, or --no-resume to start anew"
        )
    return EvaluationResult(**content["result"]) if content["result"] else None


def carry_out(
    run: EvaluationRun, finetune: Finetune, command: str, keep_checkpoint: bool
) -> EvaluationResult:
    """Fine-tune, or resume a killed run; then write the result and remove the weights."""
    folder = run.settings.output_dir
    content = {"identity": identity(run.settings), "result": None}
    write_json(folder / "run.json", content)
    best = finetune(run.settings, command)
    result = read_result(run.settings, TaskSpec.read(best))
    write_json(folder / "run.json", {**content, "result": asdict(result)})
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    if not keep_checkpoint:
        shutil.rmtree(best, ignore_errors=True)
    return result


def read_result(settings: FinetuneSettings, spec: TaskSpec) -> EvaluationResult:
    """Read the scores of a checkpoint's `task.json`."""
    tests = {file.source_name for file in settings.test}
    dev = {name: scores for name, scores in spec.scores.items() if name not in tests}
    tokenizer = Tokenizer.load(base_folder(settings.base))
    task = make_task(settings, tokenizer, spec)
    found = (name for name in task.metrics if any(name in scores for scores in dev.values()))
    metric = settings.metric or next(found, task.metric)  # which it is may depend on the kind of dev data
    values = [scores[metric] for scores in dev.values() if metric in scores]
    if not values:
        raise TrainingError(
            f"{metric} of {', '.join(dev)} is not a number: all predictions or labels are alike"
        )
    return EvaluationResult(
        metric,
        sum(values) / len(values),
        dev,
        {name: spec.scores[name] for name in spec.scores if name in tests},
    )


def write_json(path: Path, content: Any) -> None:
    """Write JSON; whoever is killed leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
