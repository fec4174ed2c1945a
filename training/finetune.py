"""`bert-finetune`: labelled data to a fine-tuned checkpoint."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bert.base_models import MINILM, MINILM_SHA256, resolve_base
from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training import model as models
from training.command_line import run
from training.data.validate import shared_with_training
from training.loop import Dataset, Loop
from training.progress import progress, stage
from training.run import Run, score_base
from training.settings import FinetuneSettings, from_command_line
from training.sources import Source, check_pairs, find_labels, read_sources, read_training
from training.tasks.base import FinetuneTask
from training.tasks.choice import ChoiceTask
from training.tasks.ner import NerTask
from training.tasks.qa import QaTask
from training.tasks.sequence import SequenceTask
from training.tasks.similarity import SimilarityTask

TASKS: dict[str, type[FinetuneTask]] = {
    "classification": SequenceTask,
    "ner": NerTask,
    "qa": QaTask,
    "similarity": SimilarityTask,
    "multiple_choice": ChoiceTask,
}


def finetune(settings: FinetuneSettings, command: str = "") -> Path:
    """Run from data to report; return the folder of the best checkpoint.

    Raises DataError for data that cannot be read, before anything is trained.
    """
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
        tokenizer = Tokenizer.load(resolve_base(settings.base))
        task = TASKS[settings.task](tokenizer, make_spec(settings, train, labels, command))
        data = _dataset(task, train)
    loop = Loop(settings, task, *models.build(settings, task), data)
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
        base={"name": MINILM, "sha256": MINILM_SHA256} if settings.base == MINILM else {},
        command=command,
    )


def _dataset(task: FinetuneTask, train: Sequence[Source]) -> Dataset:
    parts = [task.features(source.examples) for source in train]
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
