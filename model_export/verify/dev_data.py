"""Labelled data to score a graph on: read as `bert-finetune` reads it, by default as the checkpoint's own files were."""

from dataclasses import replace
from typing import Any

from bert.data.examples import QaExample, TextExample, WordsExample
from bert.data.labelled_file import LabelledFile
from bert.data.read import read_labelled
from bert.errors import CheckpointError, ConfigError, DataError
from bert.tasks.spec import TaskSpec


def recorded_dev_files(spec: TaskSpec) -> list[LabelledFile]:
    """Return the dev files that `task.json` records and that are at hand. Raises CheckpointError."""
    return [file for file in recorded_files(spec, "dev") if file.path.is_file()]


def recorded_files(spec: TaskSpec, part: str) -> list[LabelledFile]:
    """Return the `train` or `dev` files that `task.json` records, at hand or not. Raises CheckpointError."""
    values: Any = spec.data.get(part, [])
    try:
        return [LabelledFile.from_record(file) for file in values]
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"task.json: data.{part} is not a list of files: {error}") from None


def as_recorded(file: LabelledFile, spec: TaskSpec) -> LabelledFile:
    """Return a file with what its user left open (columns, names of labels, ...) as `task.json` records it.

    The record of the same file counts, else that of the first dev or training file. Raises CheckpointError.
    """
    recorded = [*recorded_files(spec, "dev"), *recorded_files(spec, "train")]
    same = [other for other in recorded if other.path == file.path]
    model = next(iter(same or recorded), None)
    if model is None:
        return file
    reading = model.given()
    if not same:  # another kind of file may have the same columns
        reading = {name: value for name, value in reading.items() if name not in ("format", "glue_task")}
    return LabelledFile(**{**reading, **file.given()})


def read_texts(file: LabelledFile, spec: TaskSpec) -> list[TextExample]:
    """Read texts or pairs whose labels are the model's, by name or by number. Raises DataError."""
    examples: list[TextExample] = read_labelled(
        _numbered(file, spec), spec.task, spec.problem, spec.labels or None
    )
    if any(example.label is None for example in examples):
        raise DataError(file.path, None, "has no labels to score by")
    return examples


def read_sentences(file: LabelledFile, spec: TaskSpec) -> list[WordsExample]:
    """Read tagged words. Types that the model does not know count as O.

    Raises DataError for what cannot be read, and where the model knows none of the types.
    """
    known = {label[2:] if label[:2] in ("B-", "I-") else label for label in spec.labels}
    examples: list[WordsExample] = read_labelled(file, spec.task)
    types = {tag[2:] for example in examples for tag in example.labels if tag != "O"}
    if types and not types & known:
        unknown, wanted = ", ".join(sorted(types)), ", ".join(sorted(known - {"O"}))
        raise DataError(file.path, None, f"has the types {unknown}, and the model knows only {wanted}")
    return [_only_known(example, known) for example in examples]


def read_questions(file: LabelledFile) -> list[QaExample]:
    """Read questions with their paragraphs. Raises DataError."""
    examples: list[QaExample] = read_labelled(file, "qa")
    return examples


def _numbered(file: LabelledFile, spec: TaskSpec) -> LabelledFile:
    """Let numbers in the file stand for the model's labels in their order, unless labels are numbers themselves."""
    if file.label_names or any(label.isdecimal() for label in spec.labels):
        return file
    return replace(file, label_names=list(spec.labels))


def _only_known(example: WordsExample, known: set[str]) -> WordsExample:
    labels = tuple(tag if tag[2:] in known else "O" for tag in example.labels)
    return WordsExample(example.words, labels, example.id)
