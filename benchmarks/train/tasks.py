"""Data, shapes and batch sizes that both baselines train on, and the marks taken after each step."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import BERT_SHAPES
from training.data_file import DataFile
from training.labelled.sources import Source, read_training
from training.settings import RANDOM, FinetuneSettings

TASKS = ("sst2", "qa", "mlm")
BATCH_SIZE = {"sst2": 32, "qa": 12, "mlm": 32}
"""Texts, windows or rows a step; 12 windows is what the Trainer's own SQuAD example takes."""
LEARNING_RATE = {"sst2": 5e-5, "qa": 3e-5, "mlm": 1e-4}
EXAMPLES = {"sst2": 8000, "qa": 3000}
"""Number of the file's first examples that are used; no run is longer than an epoch of them."""
MAX_TOKENS = {"sst2": 128, "qa": 384, "mlm": 128}
QA_STRIDE = 128
"""Tokens that neighbouring windows share."""
TASK_FILES = {"sst2": "glue/SST-2/train.tsv", "qa": "squad/train-v1.1-12-articles.json"}


@dataclass(frozen=True, slots=True)
class Mark:
    """Progress of a run after a step."""

    seconds: float
    """Time by a clock that only goes up."""
    tokens: int
    """Since the start, without padding."""
    loss: float
    """Loss of the step, mean over its targets."""


@dataclass(frozen=True, slots=True)
class TrainingSpeed:
    """Speed and losses of one run."""

    tokens_per_s: float
    first_loss: float
    last_loss: float
    """Mean of the last quarter of the steps."""
    tokens_per_step: float


def measured(marks: Sequence[Mark], warm_steps: int) -> TrainingSpeed:
    """Summarise a run of at least two steps; the first `warm_steps` (at most half) are not timed."""
    warm = marks[min(warm_steps, len(marks) // 2) - 1]
    last = marks[-max(1, len(marks) // 4) :]
    return TrainingSpeed(
        (marks[-1].tokens - warm.tokens) / (marks[-1].seconds - warm.seconds),
        marks[0].loss,
        sum(mark.loss for mark in last) / len(last),
        marks[-1].tokens / len(marks),
    )


def model_of(options: Namespace) -> dict[str, Any]:
    """Return the shape of fresh models; without dropout of attention with `--no-attention-dropout`."""
    return BERT_SHAPES[options.model] | (
        {} if options.attention_dropout else {"attention_probs_dropout_prob": 0.0}
    )


def finetune_settings(options: Namespace) -> FinetuneSettings:
    """Return bert-finetune's settings for `sst2` or `qa`; without warm-up, as the Trainer has it by default."""
    name = options.tasks[0]
    base: dict[str, Any] = {"base": f"{RANDOM}{options.made_up / 'model'}"} if options.made_up else {}
    return FinetuneSettings(
        **base,
        task="classification" if name == "sst2" else "qa",
        output_dir=Path("unused"),
        train=[DataFile(path=options.data / TASK_FILES[name])],
        batch_size=options.batch or BATCH_SIZE[name],
        epochs=3,
        learning_rate=LEARNING_RATE[name],
        warmup_ratio=0.0,
        max_tokens=MAX_TOKENS[name],
        stride=QA_STRIDE if name == "qa" else 0,
        max_steps=options.steps,
        precision=options.precision,
    )


def read_source(options: Namespace, settings: FinetuneSettings) -> Source:
    """Read the examples that both train on."""
    (source,) = read_training(settings)
    return Source(source.name, source.examples[: EXAMPLES[options.tasks[0]]], 1.0)
