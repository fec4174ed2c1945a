"""`bert-finetune`: labelled data to a fine-tuned checkpoint."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bert.base_models import weights_sha256
from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training import model as models
from training.command_line import run
from training.data.validate import shared_with_training
from training.distributed import pick_device
from training.loop import Dataset, Loop
from training.progress import progress, stage
from training.run import Run, score_base
from training.settings import FinetuneSettings, TeacherSettings, from_command_line
from training.sources import Source, check_pairs, find_labels, read_sources, read_training
from training.starting import start_from
from training.tasks.base import Feature, FinetuneTask
from training.tasks.registry import make_task
from training.teacher import Teacher


def finetune(settings: FinetuneSettings, command: str = "") -> Path:
    """Run from data to report; return the folder of the best checkpoint.

    Raises DataError for data that cannot be read, before anything is trained.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("bert-finetune trains in one process: start it without torchrun")
    torch.manual_seed(settings.seed)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with stage("reading data"):
        train = read_training(settings)
        labels = find_labels(settings, train)
        dev = read_sources(settings.dev, settings, labels or None)
        test = read_sources(settings.test, settings, labels or None)
        check_pairs([*train, *dev, *test])
        shared_with_training(_examples(train), _examples([*dev, *test]))
        tokenizer = Tokenizer.load(models.base_folder(settings.base))
        task = make_task(settings, tokenizer, make_spec(settings, train, labels, command))
        task.prepare(_examples(train))
        parts = [task.features(source.examples) for source in train]
    if settings.teacher:
        parts = _taught(settings.teacher, task, parts, train, settings.device)
    model, trained = models.build(settings, task)
    if settings.start_from:
        start_from(settings.start_from, task.spec, model, trained)
    loop = Loop(settings, task, model, trained, _dataset(parts, train))
    if not settings.train:
        if settings.task != "similarity":
            raise ConfigError(
                f"no training data: only similarity works without a head, not {settings.task!r}"
            )
        return score_base(settings, task, loop, [*dev, *test])
    whole = Run(settings, task, loop, dev, test)
    return whole.run(progress(loop.total_steps, loop.progress.step))


def make_spec(
    settings: FinetuneSettings, train: Sequence[Source], labels: tuple[str, ...], command: str
) -> TaskSpec:
    """Describe the task from the settings and the data."""
    examples = _examples(train)
    return TaskSpec(
        task=settings.task,
        labels=labels,
        problem=settings.problem,
        pair=settings.task == "classification" and any(e.text_pair is not None for e in examples),
        max_tokens=settings.max_tokens,
        stride=settings.stride,
        max_question_tokens=settings.max_question_tokens,
        max_answer_tokens=settings.max_answer_tokens,
        allows_no_answer=settings.task == "qa" and any(not e.answers for e in examples),
        base=name_base(settings.base),
        command=command,
    )


def name_base(base: str) -> dict[str, str]:
    """Return name and hash of the weights that an adapter belongs to; nothing where the weights are fresh."""
    if models.is_random(base):
        return {}
    sha256 = weights_sha256(models.base_folder(base))
    return {"name": base, "sha256": sha256} if sha256 else {"name": base}


def _taught(
    settings: TeacherSettings,
    task: FinetuneTask,
    parts: list[list[Feature]],
    train: list[Source],
    device: str,
) -> list[list[Feature]]:
    """Return each file's features with a teacher's logits."""
    with stage("asking the teacher"):
        teacher = Teacher(settings, task, pick_device(device))
        return [teacher.mark(part, source.examples) for part, source in zip(parts, train, strict=True)]


def _dataset(parts: list[list[Feature]], train: Sequence[Source]) -> Dataset:
    return Dataset(
        [feature for part in parts for feature in part],
        [len(part) for part in parts],
        [source.repeat for source in train],
    )


def _examples(sources: Sequence[Source]) -> list[Any]:
    return [example for source in sources for example in source.examples]


def main() -> None:
    """Run from the command line."""
    run(lambda: finetune(from_command_line(), shlex.join(["bert-finetune", *sys.argv[1:]])))


if __name__ == "__main__":
    main()
