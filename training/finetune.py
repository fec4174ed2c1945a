"""Fine-tuning, from labelled data to the report: what `bert-finetune` does."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert.config import BertConfig
from bert.data.examples import TextExample
from bert.errors import ConfigError
from bert.tasks.registry import TASKS
from bert.tasks.spec import LabelPrompt, TaskSpec
from bert.tasks.vectors.sentence_transformers import lower_cased
from training.engine.checkpoints import CheckpointStore, require_writable
from training.engine.distributed import Processes, processes
from training.engine.progress import stage
from training.engine.state import planned
from training.engine.trainer import CHECKPOINTS
from training.finetuning import model as models
from training.finetuning.batches import Dataset
from training.finetuning.loop import make_loop
from training.finetuning.prompted import base_config, base_tokenizer
from training.finetuning.recipe import LinearSchedule, Recipe, make_recipe
from training.finetuning.scores import score_base
from training.finetuning.trainer import FinetuneTrainer
from training.labelled.model_examples import model_examples
from training.labelled.sources import (
    Source,
    check_pairs,
    find_labels,
    read_sources,
    read_training,
    shared_with_training,
)
from training.labelled.summary import FileSummary, label_counts, summarize
from training.report.checks import unseen_labels
from training.settings import FinetuneSettings
from training.tasks import make_task
from training.tasks.base import Feature, FinetuneTask

logger = logging.getLogger(__name__)


def finetune(settings: FinetuneSettings, command: str = "") -> Path:
    """Run from data to report; return the folder of the best checkpoint.

    Raises DataError for data that cannot be read, before anything is trained.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with processes(settings.device) as group:
        return _finetune(settings, command, group)


def _finetune(settings: FinetuneSettings, command: str, group: Processes) -> Path:
    require_writable(settings.output_dir)
    torch.manual_seed(settings.seed)
    with stage("reading data", quiet=not group.leads):
        train, dev, test, task = _read(settings, command, group)
        parts = [task.features(source.examples) for source in train]
        files = _summaries(settings, task, {"train": train, "dev": dev, "test": test})
    _log_files(files)
    if settings.teacher:
        from training.finetuning.teacher import with_teacher_logits

        with stage("asking the teacher", quiet=not group.leads):
            read = [(part, source.examples) for part, source in zip(parts, train, strict=True)]
            parts = with_teacher_logits(settings.teacher, task, group.device, read)
    model, trained = models.build(settings, task)
    if not settings.train:
        if not TASKS[settings.task].embeds:
            raise ConfigError(
                f"no training data: only similarity works without a head, not {settings.task!r}"
            )
        return score_base(settings, task, trained, [*dev, *test], group)
    if settings.start_from:
        models.start_from(settings.start_from, task.spec, model, trained)
    data = _dataset(parts, train)
    recipe = _recipe(settings, model.config, data)
    settings = recipe.applied(settings)
    schedule = LinearSchedule.over(data, settings)
    sentence = recipe.sentence(schedule.total_steps, schedule.warmup_steps)
    logger.info("%s", sentence)
    loop = make_loop(settings, task, trained, data, schedule, group)
    trainer = FinetuneTrainer(settings, task, model, trained, loop, dev, test, files, sentence)
    trainer.run()
    return trainer.best


def _read(
    settings: FinetuneSettings, command: str, group: Processes
) -> tuple[list[Source], list[Source], list[Source], FinetuneTask]:
    """Read train, dev and test files, and make the task that they describe."""
    train = read_training(settings)
    labels = find_labels(settings, train)
    dev = read_sources(settings.dev, settings, labels or None)
    test = read_sources(settings.test, settings, labels or None)
    check_pairs([*train, *dev, *test])
    shared_with_training(_examples(train), _examples([*dev, *test]))
    kind = TASKS[settings.task]
    count = settings.examples if kind.embeds or not kind.needs_pairs else 0
    examples = model_examples(_examples(dev), count, embeds=kind.embeds)
    tokenizer, prompt = base_tokenizer(settings)
    spec = replace(make_spec(settings, train, labels, command, prompt), examples=examples)
    tokenizer = tokenizer.with_letter_shapes(settings.letter_shapes)
    if TASKS[settings.task].embeds:
        tokenizer = lower_cased(models.base_folder(settings.base), tokenizer)
        _warn_of_ignored_layers(settings.base)
    task = make_task(settings, tokenizer, spec)
    task.configure(settings, *_drawn_labels(train), group.world)
    task.prepare(_examples(train), _examples(dev))
    return train, dev, test, task


def _warn_of_ignored_layers(base: str) -> None:
    """Log which dense layers and prompt of a base's embeddings the run does not use."""
    own = models.base_embedding(base)
    if own.dense:
        logger.warning(
            "warning: the dense layers of %s are left out: embeddings are those of its pooling", base
        )
    if own.default_prompt_name:
        logger.warning(
            "warning: the prompt %r of %s is no default any more: texts are read as they are in the data",
            own.default_prompt_name, base,
        )  # fmt: skip


def _log_files(files: Sequence[FileSummary]) -> None:
    for file in files:
        logger.info("%s", file.sentence)
        if file.too_long:
            logger.info("%s %s: %s", file.part, file.name, file.too_long)
    for line in unseen_labels(files):
        logger.warning("warning: %s", line)


def make_spec(
    settings: FinetuneSettings,
    train: Sequence[Source],
    labels: tuple[str, ...],
    command: str,
    prompt: LabelPrompt | None = None,
) -> TaskSpec:
    """Describe the task from the settings and the data."""
    examples = _examples(train)
    embeds = TASKS[settings.task].embeds
    own = models.base_embedding(settings.base) if embeds else TaskSpec("similarity")
    return TaskSpec(
        task=settings.task,
        labels=labels,
        label_prompt=prompt,
        problem_type=settings.problem,
        pair=TASKS[settings.task].may_read_pairs and any(e.text_pair is not None for e in examples),
        pooling=own.pooling,
        similarity="dot" if settings.task == "sparse" else "cosine",
        prompts=own.prompts,
        letter_shapes=settings.letter_shapes,
        viterbi=TASKS[settings.task].has_tags,  # all readers turn tags into BIO's
        left_out=tuple(settings.left_out),
        max_tokens=settings.max_tokens,
        long_texts=settings.long_texts,
        stride=settings.window_stride,
        max_question_tokens=settings.max_question_tokens,
        max_answer_tokens=settings.max_answer_tokens,
        allows_no_answer=TASKS[settings.task].has_questions and any(not e.answers for e in examples),
        base=models.name_base(settings.base),
        data={
            part: [file.labelled.record() for file in getattr(settings, part)] for part in ("train", "dev")
        },
        command=command,
    )


def _summaries(
    settings: FinetuneSettings, task: FinetuneTask, parts: Mapping[str, Sequence[Source]]
) -> list[FileSummary]:
    """Return a summary of each file."""
    largest = base_config(settings).max_position_embeddings
    return [
        summarize(
            part, source.name, source.examples, task.spec.labels, task.lengths(source.examples), largest
        )
        for part, sources in parts.items()
        for source in sources
    ]


def _recipe(settings: FinetuneSettings, config: BertConfig, data: Dataset) -> Recipe:
    """Choose what the settings leave open; a resumed run keeps what it began with."""
    batches = data.batches(settings, 0)
    if not batches:
        raise ConfigError(
            f"an epoch draws none of the {len(data.features)} training examples: the share that repeat asks for is "
            "less than one"
        )
    saves = CheckpointStore(settings.output_dir / CHECKPOINTS).newest_first() if settings.resume else ()
    return make_recipe(settings, config, sum(map(len, batches)), len(batches), planned(saves))


def _drawn_labels(train: Sequence[Source]) -> tuple[dict[str, float], float]:
    """Return how many examples of each label an epoch draws, and of all."""
    counts: dict[str, float] = defaultdict(float)
    for source in train:
        if source.examples and isinstance(source.examples[0], TextExample):
            for label, count in label_counts(source.examples).items():
                counts[label] += source.repeat * count
    return counts, sum(source.repeat * len(source.examples) for source in train)


def _dataset(parts: list[list[Feature]], train: Sequence[Source]) -> Dataset:
    """Join the files in order; weights are scaled to a mean of 1 over an epoch, so that the loss keeps its scale."""
    features, repeats = list(chain.from_iterable(parts)), [source.repeat for source in train]
    counts, weights = [len(part) for part in parts], [feature.weight for feature in features]
    mean = np.average(weights, weights=np.repeat(repeats, counts)) if weights else 1.0
    if mean != 1.0 or set(weights) != {1.0}:
        features = [replace(feature, weight=float(feature.weight / mean)) for feature in features]
    return Dataset(features, counts, repeats)


def _examples(sources: Sequence[Source]) -> list[Any]:
    return [example for source in sources for example in source.examples]
