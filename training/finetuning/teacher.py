"""Learning from fine-tuned checkpoints: their logits for the training data, computed once before training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.errors import ConfigError
from bert.tasks.registry import TASKS
from bert.tasks.task import Head
from bert.tokenizer import Tokenizer
from training.engine.distributed import Processes
from training.finetuning.model import of_checkpoint
from training.finetuning.scores import predictor
from training.settings import TeacherSettings
from training.tasks.base import Feature, FinetuneTask, Floats


class Teacher:
    """A checkpoint of the student's task, full or an adapter, that is only read."""

    def __init__(self, folder: Path, student: FinetuneTask, device: torch.device) -> None:
        """Load it. Raises ConfigError where it does not teach what the student learns."""
        checkpoint = read_checkpoint(folder)
        _check_match(folder, checkpoint, student)
        # A teacher with one row of logits for each text reads the texts, not the student's pieces: vocabularies may differ.
        self._reads_texts = TASKS[student.spec.task].head is Head.POOLED
        if not self._reads_texts:
            _check_vocabulary(folder, checkpoint.tokenizer, student.tokenizer)
            checkpoint.config.check_fits(student.tokenizer.highest_id() + 1, student.spec.max_tokens)
        self.model, self.task = of_checkpoint(checkpoint)
        self.predict = predictor(self.model.to(device), self.task, Processes(0, 1, device))
        # Column of the teacher's logits for each label of the student's.
        self.columns = [checkpoint.spec.labels.index(label) for label in student.spec.labels]

    def logits(self, features: Sequence[Feature], examples: Sequence[Any]) -> list[Floats]:
        """Return its logits for each of the student's features; `examples` are those that they came from."""
        read = self.task.features(examples) if self._reads_texts else features
        assert len(read) == len(features)
        rows = [encoding for feature in read for encoding in feature.encodings]
        logits = iter(self.predict(rows))
        return [self._soft([next(logits) for _ in feature.encodings]) for feature in features]

    def _soft(self, rows: list[Floats]) -> Floats:
        if self.columns:
            return rows[0][..., self.columns]
        return np.concatenate(rows) if len(rows) > 1 else rows[0]


def with_teacher_logits(
    settings: TeacherSettings,
    student: FinetuneTask,
    device: torch.device,
    parts: Sequence[tuple[Sequence[Feature], Sequence[Any]]],
) -> list[list[Feature]]:
    """Return each part's features with the mean of the teachers' logits; a part's examples are those they came from.

    Raises ConfigError where a teacher does not teach what the student learns.
    """
    sums: list[list[Floats]] = []
    for folder in settings.checkpoint:  # one at a time: a large model may fill the memory
        teacher = Teacher(folder, student, device)
        logits = [teacher.logits(features, examples) for features, examples in parts]
        sums = (
            [[x + y for x, y in zip(*both, strict=True)] for both in zip(sums, logits, strict=True)]
            if sums
            else logits
        )
    count = np.float32(len(settings.checkpoint))
    return [
        [replace(feature, soft=x / count) for feature, x in zip(features, summed, strict=True)]
        for (features, _), summed in zip(parts, sums, strict=True)
    ]


def _check_match(folder: Path, checkpoint: Checkpoint, student: FinetuneTask) -> None:
    """Raise ConfigError where the teacher has another task, or other labels, than its student."""
    theirs, ours = checkpoint.spec, student.spec
    if theirs.dense:
        raise ConfigError(f"the teacher {folder} has dense layers, which no student has")
    for name in ("task", "problem_type", "pair", "letter_shapes"):
        if getattr(theirs, name) != getattr(ours, name):
            raise ConfigError(
                f"the teacher {folder} has {name} {getattr(theirs, name)!r}, "
                f"and the run {getattr(ours, name)!r}"
            )
    if set(theirs.labels) != set(ours.labels):
        raise ConfigError(
            f"the teacher {folder} knows the labels {sorted(theirs.labels)}, "
            f"and the data has {sorted(ours.labels)}"
        )


def _check_vocabulary(folder: Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Raise ConfigError where the vocabularies differ in any piece: logits stand at pieces."""
    same = theirs.vocab_size == ours.vocab_size and all(
        theirs.id_to_token(i) == ours.id_to_token(i) for i in range(ours.vocab_size)
    )
    if not same:
        raise ConfigError(f"the teacher {folder} cuts words into other pieces than the base does")
