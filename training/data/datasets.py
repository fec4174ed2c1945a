"""Examples of a run, read from its files by their format."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert.data.conll import bio_labels
from bert.data.examples import QaExample, TextExample
from bert.data.read import Labels, Reader, read_labelled, text_columns
from bert.errors import ConfigError, DataError
from bert.tasks.registry import TASKS
from training.corpus.datasets import list_files
from training.corpus.readers import DocumentReader, text_of
from training.data.choice import read_choice
from training.data.hub import (
    HubData,
    hub_columns,
    read_hub_choices,
    read_hub_questions,
    read_hub_texts,
    read_hub_words,
)
from training.data.recurring_spans import recurring_questions
from training.data.unanswerable import cut_answers, make_unanswerable, surest
from training.data.unlearned import unlearned
from training.data.validate import class_labels, validate_training
from training.data_file import DataFile
from training.settings import FinetuneSettings, RecaseSettings

logger = logging.getLogger(__name__)
Confidence = Callable[[Sequence[QaExample]], Sequence[float]]
"""Function from questions to how much a model prefers its best answer to none."""
CANDIDATES = 3
"""Unanswerable questions that a model reads for each one that is kept."""
_CHOICE_FORMATS = {"multiple_choice": ("codah", "swag", "jsonl")}


@dataclass(frozen=True, slots=True)
class Source:
    """One file's examples."""

    name: str
    examples: list[Any]
    repeat: float


def read_sources(
    files: Sequence[DataFile],
    settings: FinetuneSettings,
    labels: Labels = None,
    confidence: Confidence | None = None,
) -> list[Source]:
    """Read files in order; with `labels`, any other label is an error.

    With `confidence` a model chooses the unanswerable questions: of CANDIDATES times as many, those that it would answer
    most surely.
    Raises DataError with file, line and reason, before anything is trained.
    """
    sources = []
    for file in files:
        examples = read_examples(file, settings, labels)
        sources.append(Source(file.source_name, examples, file.repeat))
        made: dict[str, list[QaExample]] = {}
        if file.unanswerable:
            made[file.unanswerable_name] = _unanswerable(
                examples, file.unanswerable, settings.seed, confidence
            )
        if file.unanswerable_cut:
            made[file.cut_name] = cut_answers(examples, file.unanswerable_cut, settings.seed)
        for name, questions in made.items():
            if questions:
                sources.append(Source(name, questions, file.repeat))
            else:
                logger.warning(
                    "%s: no questions were made for %s: there are too few, or no paragraph to ask them of",
                    file.path, name,
                )  # fmt: skip
    return sources


def _unanswerable(
    examples: Sequence[QaExample], share: float, seed: int, confidence: Confidence | None
) -> list[QaExample]:
    if confidence is None:
        return make_unanswerable(examples, share, seed)
    made = make_unanswerable(examples, share * CANDIDATES, seed)
    count = round(share * sum(bool(example.answers) for example in examples))  # a few paragraphs make fewer
    return surest(made, confidence(made), count)


def read_training(settings: FinetuneSettings, confidence: Confidence | None = None) -> list[Source]:
    """Read the training files and refuse those from which nothing can be learned."""
    sources = read_sources(settings.train, settings, confidence=confidence)
    if any(file.unlearned for file in settings.train):  # a file of ner has one source
        sources = [
            replace(source, examples=unlearned(source.examples, file.unlearned, file.path))
            for source, file in zip(sources, settings.train, strict=True)
        ]
    if settings.recase:
        sources = [part for source in sources for part in _recased(source, settings.recase)]
    if sources:
        everything = [example for source in sources for example in source.examples]
        validate_training(", ".join(str(file.path) for file in settings.train), everything)
    return sources


def _recased(source: Source, recase: RecaseSettings) -> list[Source]:
    """Split a file's draws in three: sentences as they are, in small letters, and in capitals."""
    shares: list[tuple[str, float, Callable[[str], str]]] = [
        ("", 1 - recase.lower - recase.upper, lambda word: word),
        ("-lower", recase.lower, str.lower),
        ("-upper", recase.upper, str.upper),
    ]
    return [
        Source(
            f"{source.name}{suffix}",
            [replace(example, words=tuple(map(change, example.words))) for example in source.examples],
            source.repeat * share,
        )
        for suffix, share, change in shares
        if share
    ]


def read_examples(file: DataFile, settings: FinetuneSettings, labels: Labels = None) -> list[Any]:
    """Read one file by its format."""
    others: dict[str, Reader] = {
        "hub": lambda: read_hub(file, settings, labels),
        "recurring_spans": lambda: read_recurring(file, settings.seed),
        **dict.fromkeys(_CHOICE_FORMATS.get(settings.task, ()), lambda: list(read_choice(file.path))),
    }
    return read_labelled(file.labelled, settings.task, settings.problem, labels, others)


def read_recurring(file: DataFile, seed: int) -> list[Any]:
    """Make questions of raw text, of a file or folder in the formats that bert-prepare reads."""
    return recurring_questions(_whole_texts(file), file.limit, seed)


def _whole_texts(file: DataFile) -> Iterator[str]:
    for found in list_files([str(file.path)]):
        reader = DocumentReader(found)
        for record in reader.records():
            try:
                yield text_of(found, record.data)
            except ValueError as error:
                raise DataError(found.path, record.line, str(error)) from None


def read_hub(file: DataFile, settings: FinetuneSettings, labels: Labels) -> list[Any]:
    """Read a data set of the hub, or a local folder of one."""
    data = HubData(str(file.path), file.hub_split, file.hub_config, file.hub_revision)
    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "qa": lambda: read_hub_questions(data),
        "ner": lambda: read_hub_words(
            data, **file.columns, label_map=file.label_map, labels=labels, label_names=file.label_names
        ),
        "multiple_choice": lambda: read_hub_choices(data, **choice_columns(file)),
    }
    return list(readers.get(settings.task, lambda: _read_hub_texts(file, settings, labels, data))())


def _read_hub_texts(
    file: DataFile, settings: FinetuneSettings, labels: Labels, data: HubData
) -> Iterable[TextExample]:
    columns = text_columns(file.labelled, settings.task, settings.problem, labels, hub_columns(data))
    return read_hub_texts(data, columns)


def choice_columns(file: DataFile) -> dict[str, Any]:
    """Return the columns to read; `choices` names one that holds a list, or several, separated by commas."""
    named: dict[str, Any] = dict(file.columns)
    if "choices" in named:
        named["choices"] = tuple(name.strip() for name in named["choices"].split(","))
    return named


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
