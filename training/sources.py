"""The files of a run, read by their format into examples of the task."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from training.data.choice import read_choice
from training.data.conll import bio_labels, read_conll
from training.data.edited_questions import edit_unanswerable
from training.data.examples import TextExample
from training.data.glue import glue_task, read_glue
from training.data.hub import (
    HubData,
    hub_columns,
    read_hub_choices,
    read_hub_questions,
    read_hub_texts,
    read_hub_words,
)
from training.data.rows import TextColumns
from training.data.squad import read_squad
from training.data.tables import TABLES, column_names, read_table
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
# What `columns` may name, where a format's columns have no fixed names.
_TEXTS = ("text", "text_pair", "label", "id")
_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "classification": dict.fromkeys(("csv", "tsv", "jsonl", "hub"), _TEXTS),
    "similarity": dict.fromkeys(("csv", "tsv", "jsonl", "hub"), _TEXTS),
    "ner": {"hub": ("words", "tags")},
    "multiple_choice": {"hub": ("prompt", "choices", "label", "start")},
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
        sources.append(Source(file.source_name, examples, file.repeat))
        if file.unanswerable:
            made = make_unanswerable(examples, file.unanswerable, settings.seed)
            sources.append(Source(file.unanswerable_name, list(made), file.repeat))
        if file.unanswerable_edited:
            edited = edit_unanswerable(examples, file.unanswerable_edited, settings.seed)
            sources.append(Source(file.edited_name, list(edited), file.repeat))
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
    _check_columns(file, settings.task, kind)
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
    read = readers.get(kind, lambda: list(read_table(file.path, table_columns(file, settings, labels))))
    return read()


def _check_columns(file: DataFile, task: str, kind: str) -> None:
    known = _COLUMNS.get(task, {}).get(kind, ())
    if unknown := set(file.columns) - set(known):
        raise ConfigError(
            f"columns of {file.path} names {sorted(unknown)}; "
            f"known for {task} from {kind} are {', '.join(known) or 'none'}"
        )


def read_hub(file: DataFile, settings: FinetuneSettings, labels: Labels) -> list[Any]:
    """Read a data set of the hub, or a local folder of one."""
    data = HubData(str(file.path), file.hub_split, file.hub_config, file.hub_revision)
    if settings.task == "qa":
        return list(read_hub_questions(data))
    if settings.task == "ner":
        return list(read_hub_words(data, **file.columns, label_map=file.label_map, labels=labels))
    if settings.task == "multiple_choice":
        return list(read_hub_choices(data, **choice_columns(file)))
    return list(read_hub_texts(data, text_columns(file, settings, labels, hub_columns(data))))


def choice_columns(file: DataFile) -> dict[str, Any]:
    """Return which columns are read; `choices` is the name of one that holds a list, or several with commas between."""
    named: dict[str, Any] = dict(file.columns)
    if "choices" in named:
        named["choices"] = tuple(name.strip() for name in named["choices"].split(","))
    return named


def table_columns(file: DataFile, settings: FinetuneSettings, labels: Labels) -> TextColumns:
    """Return which columns of a file are read."""
    # Where the settings say it, the file need not be asked.
    present = frozenset[str]() if "text_pair" in file.columns else column_names(file.path)
    return text_columns(file, settings, labels, present)


def text_columns(
    file: DataFile, settings: FinetuneSettings, labels: Labels, present: Collection[str]
) -> TextColumns:
    """Return which columns of a table are read; a similarity is a number, as in regression.

    The second text of a pair is in the column that `columns` names, else in `text_pair` where that is `present`.
    """
    problem = "regression" if settings.task == "similarity" else settings.problem
    named: dict[str, Any] = dict(file.columns)
    is_there = "text_pair" in present and "text_pair" not in named.values()
    if settings.task == "similarity" or is_there:
        named.setdefault("text_pair", "text_pair")
    named["text_pair"] = named.get("text_pair") or None  # an empty name: the first text alone is read
    return TextColumns(**named, problem=problem, labels=labels if problem != "regression" else None)


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
            "give all files the column `text_pair`, or none (columns: {text_pair: ''} leaves it out)"
        )


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
    """Return the format that the task and the file's ending say; what is no file is a data set of the hub."""
    suffix = path.suffix.lower()
    if path.is_dir() or not (suffix or path.is_file()):
        return "hub"
    if task == "multiple_choice":
        return "swag" if suffix == ".csv" else "codah"
    if task in ("qa", "ner"):
        return {"qa": "squad", "ner": "conll"}[task]
    if suffix == ".tsv" and guess_glue(path):
        return "glue"
    # A file with an ending that no format has is refused by the reader of tables, which names those there are.
    return TABLES.get(suffix, "csv" if path.is_file() else "hub")
