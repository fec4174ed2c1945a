"""Examples of a run, read from its files by their format, and checks of all of them together."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.examples import ChoiceExample, EntitiesExample, QaExample, TextExample, WordsExample
from bert.data.read import Labels, Reader, read_labelled
from bert.data.tagged_words import bio_labels
from bert.errors import ConfigError, DataError
from bert.tasks.registry import TASKS
from training.data_file import DataFile
from training.labelled.summary import label_counts
from training.settings import FinetuneSettings

logger = logging.getLogger(__name__)
Example = TextExample | WordsExample | EntitiesExample | QaExample | ChoiceExample
_CHOICE_FORMATS = {"multiple_choice": ("codah", "swag", "jsonl")}


@dataclass(frozen=True, slots=True)
class Source:
    """One file's examples."""

    name: str
    examples: list[Any]
    repeat: float


def read_sources(
    files: Sequence[DataFile], settings: FinetuneSettings, labels: Labels = None
) -> list[Source]:
    """Read files in order; with `labels`, any other label is an error.

    Raises DataError with file, line and reason, before anything is trained.
    """
    return [Source(file.source_name, read_examples(file, settings, labels), file.repeat) for file in files]


def read_training(settings: FinetuneSettings) -> list[Source]:
    """Read the training files and refuse those from which nothing can be learned."""
    sources = read_sources(settings.train, settings)
    if sources:
        everything = [example for source in sources for example in source.examples]
        validate_training(", ".join(str(file.path) for file in settings.train), everything)
    return sources


def read_examples(file: DataFile, settings: FinetuneSettings, labels: Labels = None) -> list[Any]:
    """Read one file by its format."""

    def read_hub() -> list[Any]:
        from training.labelled import hub

        return hub.read_hub(file, settings, labels)

    def read_choice() -> list[Any]:
        from training.labelled import choice

        return choice.read_choice(file.path)

    choice_formats = _CHOICE_FORMATS.get(settings.task, ())
    others: dict[str, Reader] = {"hub": read_hub, **dict.fromkeys(choice_formats, read_choice)}
    return read_labelled(file.labelled, settings.task, settings.problem, labels, others)


def check_pairs(sources: Sequence[Source]) -> None:
    """Raise ConfigError where some files have a second text and others none: one of the two would be read wrong."""
    # A list, as training files of several folders may have one name.
    pairs = [
        (source.name, {example.text_pair is not None for example in source.examples})
        for source in sources
        if source.examples and isinstance(source.examples[0], TextExample)
    ]
    if len(set().union(*(found for _, found in pairs))) > 1:
        having = [name for name, found in pairs if True in found]
        lacking = [name for name, found in pairs if False in found]
        raise ConfigError(
            f"{', '.join(having)} have two texts an example and {', '.join(lacking)} only one: "
            'give all files the column `text_pair`, or none ("columns": {"text_pair": ""} leaves it out)'
        )


def find_labels(settings: FinetuneSettings, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the labels in their order: those of the settings, else what the training data holds.

    Raises ConfigError where the settings lack one of the data.
    """
    examples = [example for source in sources for example in source.examples]
    task, given = TASKS[settings.task], tuple(settings.labels)
    if not task.needs_labels:
        return ()
    if task.has_problems and settings.problem == "regression":
        return given or ("score",)
    found = bio_labels(examples) if task.has_tags else class_labels(examples)
    if given and examples and (missing := [label for label in found if label not in given]):
        raise ConfigError(
            f"labels lacks {', '.join(missing)}, and the training files need it: {', '.join(given)}"
        )
    return given or found


def class_labels(examples: Iterable[TextExample]) -> tuple[str, ...]:
    """Return every class that occurs, numbers by value and names by alphabet: the order of the labels."""
    found = label_counts(examples)
    return tuple(sorted(found, key=int if all(label.isdecimal() for label in found) else None))


def validate_training(path: str | Path, examples: Sequence[Example]) -> None:
    """Refuse examples, all of one task, from which nothing can be learned.

    Raises DataError: no examples, unlabelled ones, one class or score only, no entity, nothing answerable.
    """
    if reason := _fault(examples):
        raise DataError(path, None, reason)


def _fault(examples: Sequence[Any]) -> str | None:
    match examples[0] if examples else None:
        case None:
            return "has no examples"
        case TextExample():
            return _label_fault([example for example in examples if example.negatives is None])
        case WordsExample() if not any(set(example.labels) - {"O"} for example in examples):
            return "has no entity to learn: every label is O"
        case EntitiesExample() if not any(example.entities for example in examples):
            return "has no entity to learn"
        case QaExample() if not any(example.answers for example in examples):
            return "has no answerable question"
    return None


def _label_fault(examples: Sequence[TextExample]) -> str | None:
    if unlabelled := sum(example.label is None for example in examples):
        return f"has {unlabelled} examples without a label, of {len(examples)}"
    if all(isinstance(example.label, tuple) for example in examples):
        return None if class_labels(examples) or not examples else "has no label on any example"
    if len({example.label for example in examples}) == 1:
        return f"has one label only, {examples[0].label!r}: there is nothing to learn"
    return None


def shared_with_training(training: Iterable[Example], held_out: Iterable[Example]) -> int:
    """Count the dev and test examples whose whole input is also in training: a score on them means little."""
    seen = Counter(_input(example) for example in training)
    shared = sum(_input(example) in seen for example in held_out)
    if shared:
        logger.warning(
            "%d dev or test examples are also in the training data; their score is too good", shared
        )
    return shared


def _input(example: Example) -> tuple[object, ...]:
    match example:
        case TextExample():
            return example.text, example.text_pair
        case WordsExample():
            return example.words
        case EntitiesExample():
            return (example.text,)
        case QaExample():
            return example.question, example.context
        case ChoiceExample():
            return example.prompt, example.choices
