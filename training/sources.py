"""The files of a run, read by their format into examples of the task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bert.errors import ConfigError
from training.data.choice import read_choice
from training.data.conll import bio_labels, read_conll
from training.data.glue import glue_task, read_glue
from training.data.hub import (
    HubData,
    read_hub_choices,
    read_hub_questions,
    read_hub_texts,
    read_hub_words,
)
from training.data.rows import TextColumns
from training.data.squad import read_squad
from training.data.tables import read_table
from training.data.unanswerable import make_unanswerable
from training.data.validate import class_labels, validate_training
from training.settings import DataFile, FinetuneSettings

Labels = tuple[str, ...] | None

# Which formats hold examples of a task.
_FORMATS = {
    "classification": ("glue", "csv", "tsv", "jsonl", "hub"),
    "similarity": ("glue", "csv", "tsv", "jsonl", "hub"),
    "ner": ("conll", "hub"),
    "qa": ("squad", "hub"),
    "multiple_choice": ("codah", "swag", "jsonl", "hub"),
}


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
    sources = []
    for file in files:
        examples = read_examples(file, settings, labels)
        sources.append(Source(file.name or file.path.stem, examples, file.repeat))
        if file.unanswerable:
            made = make_unanswerable(examples, file.unanswerable, settings.seed)
            sources.append(Source(f"{file.path.stem}-unanswerable", list(made), file.repeat))
    return sources


def read_training(settings: FinetuneSettings) -> list[Source]:
    """Read the training files and refuse those from which nothing can be learned."""
    sources = read_sources(settings.train, settings)
    if sources:
        everything = [example for source in sources for example in source.examples]
        validate_training(", ".join(str(file.path) for file in settings.train), everything)
    return sources


def read_examples(file: DataFile, settings: FinetuneSettings, labels: Labels = None) -> list[Any]:
    """Read one file by its format."""
    kind = file.format if file.format != "auto" else guess_format(file.path, settings.task)
    if kind not in _FORMATS[settings.task]:
        raise ConfigError(
            f"format {kind!r} of {file.path} does not fit the task {settings.task!r}; "
            f"it reads {', '.join(_FORMATS[settings.task])}"
        )
    readers: dict[str, Callable[[], list[Any]]] = {
        "squad": lambda: list(read_squad(file.path)),
        "conll": lambda: list(read_conll(file.path, file.label_map, labels)),
        "glue": lambda: list(read_glue(file.path, file.glue_task or guess_glue(file.path))),
        "codah": lambda: list(read_choice(file.path)),
        "swag": lambda: list(read_choice(file.path)),
        "hub": lambda: read_hub(file, settings, labels),
    }
    if kind == "jsonl" and settings.task == "multiple_choice":
        kind = "swag"
    read = readers.get(kind, lambda: list(read_table(file.path, text_columns(file, settings, labels))))
    return read()


def read_hub(file: DataFile, settings: FinetuneSettings, labels: Labels) -> list[Any]:
    """Read a data set of the hub, or a local folder of one."""
    data = HubData(str(file.path), split=file.hub_split, config=file.hub_config)
    if settings.task == "qa":
        return list(read_hub_questions(data))
    if settings.task == "ner":
        return list(read_hub_words(data, **file.columns, label_map=file.label_map, labels=labels))
    if settings.task == "multiple_choice":
        return list(read_hub_choices(data, **cast(dict[str, Any], file.columns)))
    return list(read_hub_texts(data, text_columns(file, settings, labels)))


def text_columns(file: DataFile, settings: FinetuneSettings, labels: Labels) -> TextColumns:
    """Return which columns of a table are read; a similarity is a number, as in regression."""
    problem = "regression" if settings.task == "similarity" else settings.problem
    named: dict[str, Any] = dict(file.columns)
    if settings.task == "similarity":
        named.setdefault("text_pair", "text_pair")
    if unknown := set(named) - {"text", "text_pair", "label", "id"}:
        raise ConfigError(f"columns names {sorted(unknown)}; known are text, text_pair, label, id")
    return TextColumns(**named, problem=problem, labels=labels if problem != "regression" else None)


def find_labels(settings: FinetuneSettings, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the labels in their order: those of the settings, else what the training data holds."""
    examples = [example for source in sources for example in source.examples]
    if settings.task == "ner":
        return tuple(settings.labels) or bio_labels(examples)
    if settings.task != "classification":
        return ()
    if settings.problem == "regression":
        return tuple(settings.labels) or ("score",)
    return tuple(settings.labels) or class_labels(examples)


def guess_glue(path: Path) -> str | None:
    """Return the folder's name where it is that of a GLUE task."""
    try:
        glue_task(path.parent.name)
    except ValueError:
        return None
    return path.parent.name


def guess_format(path: Path, task: str) -> str:
    """Return the format that the task and the file's ending say."""
    by_task = {"qa": "squad", "ner": "conll", "multiple_choice": "codah"}
    if path.suffix == ".csv" and task == "multiple_choice":
        return "swag"
    if path.suffix and task in by_task:
        return by_task[task]
    if path.suffix == ".tsv" and guess_glue(path):
        return "glue"
    return {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}.get(path.suffix, "hub")
