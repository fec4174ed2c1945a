"""A labelled file to examples of a task, by its format."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from bert.data.entity_json import holds_json, read_entity_json
from bert.data.examples import LabelledFile
from bert.data.files import ending
from bert.data.glue import glue_task, guess_task, read_glue
from bert.data.open_entities import read_open_entities, with_open_labels
from bert.data.rows import ENTAILMENT, TextColumns, from_entailment, pair_columns
from bert.data.squad import read_squad
from bert.data.tables import DIALECTS, TABLES, column_names, header_of, read_table
from bert.data.tagged_words import read_conll
from bert.errors import ConfigError, DataError
from bert.tasks.registry import TASKS

Labels = tuple[str, ...] | None
Reader = Callable[[], list[Any]]

_TEXTS = ("text", "text_pair", "label", "id")
_PAIRS = {"glue": (), **dict.fromkeys(("csv", "tsv", "jsonl", "hub"), (*_TEXTS, "negative"))}
FORMATS: dict[str, dict[str, tuple[str, ...]]] = {
    "classification": {"glue": (), **dict.fromkeys(("csv", "tsv", "jsonl", "hub"), _TEXTS)},
    "similarity": _PAIRS,
    "sparse": _PAIRS,
    "ner": {"conll": (), "jsonl": ("text", "spans", "words", "tags"), "hub": ("words", "tags")},
    "open_ner": {"conll": (), "jsonl": ("text", "spans", "words", "tags"), "hub": ("words", "tags")},
    "qa": {"squad": (), "hub": ()},
    "multiple_choice": {"codah": (), "swag": (), "jsonl": (), "hub": ("prompt", "choices", "label", "start")},
}
"""Task → formats that hold its examples, and what `columns` may name of each."""
_NO_SCORES = '; {"label": ""} for pairs that belong together and have no scores'

_GUESSES: dict[str, Callable[[Path], str]] = {
    **dict.fromkeys(("ner", "open_ner"), lambda path: "jsonl" if holds_json(path) else "conll"),
    "qa": lambda path: "squad",
    "multiple_choice": lambda path: "swag" if ending(path) == ".csv" else "codah",
}
"""Formats that a file's name or content says, for tasks whose examples are not rows of a table."""


def read_labelled(
    file: LabelledFile,
    task: str,
    problem_type: str = "single_label",
    labels: Labels = None,
    others: Mapping[str, Reader] | None = None,
) -> list[Any]:
    """Read one file by its format; with `labels`, any other label is an error.

    `others` are readers of formats that this package has none for (`hub`, multiple choice). Raises DataError with
    file, line and reason, and ConfigError for a format or columns that do not fit the task.
    """
    kind = file.format if file.format != "auto" else guess_format(file.path, task)
    if kind not in FORMATS[task]:
        raise ConfigError(
            f"format {kind!r} of {file.path} does not fit the task {task!r}; it reads {', '.join(FORMATS[task])}"
        )
    _check_columns(file, task, kind)
    examples = _read(file, task, kind, problem_type, labels, others or {})
    return from_entailment(file.path, examples) if TASKS[task].needs_pairs else examples


def _read(
    file: LabelledFile,
    task: str,
    kind: str,
    problem_type: str,
    labels: Labels,
    others: Mapping[str, Reader],
) -> list[Any]:
    if kind in others:
        return others[kind]()
    if kind in ("hub", "codah", "swag"):
        what = "is not a file here" if kind == "hub" else f"is of the format {kind!r}"
        raise ConfigError(f"{file.path} {what}, and only bert-finetune reads such data")
    match kind:
        case "squad":
            return read_squad(file.path)
        case "conll" if TASKS[task].has_open_labels:
            return with_open_labels(read_conll(file.path, file.label_map))
        case "jsonl" if TASKS[task].has_open_labels:
            return read_open_entities(file)
        case "conll":
            return read_conll(file.path, file.label_map, labels)
        case "glue":
            return read_glue(file.path, file.glue_task or guess_glue(file.path), file.label_names)
        case "jsonl" if TASKS[task].has_tags:
            return read_entity_json(file, labels)
    return _read_table(file, task, problem_type, labels)


def guess_format(path: Path, task: str) -> str:
    """Return the format that the task and the file's ending say; anything but a file is a data set of the hub."""
    suffix = ending(path)
    if path.is_dir() or not (suffix or path.is_file()):
        return "hub"
    guess = _GUESSES.get(task)
    if guess is not None:
        return guess(path)
    if suffix == ".tsv" and guess_glue(path):
        return "glue"
    # A file with an ending that no format has is refused by the reader of tables, which names those there are.
    return TABLES.get(suffix, "csv" if path.is_file() else "hub")


def guess_glue(path: Path) -> str | None:
    """Return the folder's name where it is that of a GLUE task."""
    try:
        glue_task(path.parent.name)
    except ValueError:
        return None
    return path.parent.name


def text_columns(
    file: LabelledFile, task: str, problem_type: str, labels: Labels, present: Collection[str]
) -> TextColumns:
    """Return which columns of a table are read; a similarity is a number, as in regression.

    The second text of a pair is in the column that `columns` names, else in `text_pair` where that is `present`; a
    number in `label`, else in `score`. Similarity knows more names (`pair_columns`).
    """
    numbers = {str(number): name for number, name in enumerate(file.label_names)}
    if TASKS[task].needs_pairs:
        return TextColumns(
            **pair_columns(file.path, file.columns, present),
            problem_type="regression",
            label_names=numbers,
            skip_labels=("-",),
            skip_empty=file.skip_empty,
            entailment=True,
        )
    problem_type = "regression" if TASKS[task].learns_numbers(problem_type) else problem_type
    named: dict[str, Any] = dict(file.columns)
    is_number = problem_type == "regression"
    if is_number and "label" not in present and "score" in present:
        named.setdefault("label", "score")
    if "text_pair" in present and "text_pair" not in named.values():
        named.setdefault("text_pair", "text_pair")
    named["text_pair"] = named.get("text_pair") or None  # an empty name: the first text alone is read
    return TextColumns(
        **named,
        problem_type=problem_type,
        label_names=numbers,
        labels=None if is_number else labels,
        skip_empty=file.skip_empty,
    )


def _read_table(file: LabelledFile, task: str, problem_type: str, labels: Labels) -> list[Any]:
    wanted = file.columns if TASKS[task].needs_pairs else {"text": "text", "label": "label", **file.columns}
    present = column_names(file.path, tuple(name for name in wanted.values() if name))
    has_tabs = ending(file.path) in DIALECTS and header_of(file.path, ())[0].separator == "\t"
    if not file.columns and "text" not in present and guess_task(present) and has_tabs:
        return _read_glue(file, task, problem_type)
    columns = text_columns(file, task, problem_type, labels, present)
    missing = [name for name in columns.named if name not in present]
    if missing and present:
        raise DataError(
            file.path,
            1,
            f"has no column {', '.join(map(repr, missing))}; its columns are {', '.join(map(repr, sorted(present)))}: "
            f"say which are read, {_named_columns(file, columns, present)} in place of the path (in YAML without the quotes)"
            + (_NO_SCORES if TASKS[task].needs_pairs and columns.label in missing else ""),
        )
    return read_table(file.path, columns)


def _named_columns(file: LabelledFile, columns: TextColumns, present: Collection[str]) -> str:
    """Return how the user names the columns, with "..." for those that the file lacks."""
    read = {"text": columns.text, "text_pair": columns.text_pair, "label": columns.label}
    named = {key: name if name in present else "..." for key, name in read.items() if name}
    return file.with_columns({**file.columns, **named})


def _read_glue(file: LabelledFile, task: str, problem_type: str) -> list[Any]:
    examples = read_glue(file.path, None, file.label_names)
    wants_numbers = TASKS[task].learns_numbers(problem_type)
    for example in examples:
        if TASKS[task].needs_pairs and example.label in ENTAILMENT:
            continue
        if example.label is not None and isinstance(example.label, float) != wants_numbers:
            wanted = "numbers, for pairs of texts (STS-B)" if wants_numbers else "classes"
            raise DataError(
                file.path, None, f"has the label {example.label!r}; {task} is learned from {wanted}"
            )
    return examples


def _check_columns(file: LabelledFile, task: str, kind: str) -> None:
    known = FORMATS[task][kind]
    if unknown := set(file.columns) - set(known):
        raise ConfigError(
            f"columns of {file.path} names {sorted(unknown)}; "
            f"known for {task} from {kind} are {', '.join(known) or 'none'}"
        )
