"""One run of a comparison and its `run.json`: its identity, and its scores once it is finished."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert.checkpoint.weights import file_hashes
from bert.errors import TrainingError
from bert.files import atomic_write
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.engine.trainer import CHECKPOINTS
from training.evaluation.plan import EvaluationRun
from training.finetuning.model import base_folder, is_random
from training.settings import FinetuneSettings
from training.tasks.registry import make_task

Finetune = Callable[[FinetuneSettings, str], Path]


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
