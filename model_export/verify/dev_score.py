"""The score of a graph on labelled data, by the project's own decoders and metrics, task by task.

Files are read as `bert-finetune` reads them, by default as the checkpoint's own were.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bert.data.examples import LabelledFile, QaExample, TextExample, WordsExample
from bert.data.read import read_labelled
from bert.errors import CheckpointError, ConfigError, DataError, ExportError
from bert.metrics.classification import accuracy
from bert.metrics.correlation import spearman
from bert.metrics.entities import entity_f1
from bert.metrics.squad import squad_scores
from bert.tasks import classification, ner, qa
from bert.tasks.spans import decode
from bert.tasks.spec import TaskSpec
from bert.tasks.tags import TagScheme
from bert.tasks.vectors import similarity
from bert.text.offsets import join_words
from bert.tokenizer import Tokenizer
from model_export.reference import Floats
from model_export.verify.texts import EncodedText, make_text


class DevSet(Protocol):
    """Labelled data, encoded once for every graph that is scored on it."""

    metric: str
    texts: list[EncodedText]

    def score(self, outputs: Sequence[Floats]) -> float:
        """Return the score of the graph's outputs for `texts`, 0 to 1 (a correlation: -1 to 1)."""


def read_dev(
    file: LabelledFile | Path, spec: TaskSpec, tokenizer: Tokenizer, limit: int | None = None
) -> DevSet:
    """Read and encode labelled data for a task; at most `limit` examples. Raises DataError, ConfigError or ExportError.

    What is not said of the file's columns is what `task.json` records of the checkpoint's own.
    """
    make = _DEV_SETS.get(spec.task)
    if make is None:
        raise ExportError(f"{spec.task} is not scored at export; leave --dev out")
    file = as_recorded(file if isinstance(file, LabelledFile) else LabelledFile(path=file), spec)
    return make(file, spec, tokenizer, limit)


def is_scored(spec: TaskSpec) -> bool:
    """Tell whether a task's graphs are scored on labelled data."""
    return _DEV_SETS.get(spec.task) is not None


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
        _numbered(file, spec), spec.task, spec.problem_type, spec.labels or None
    )
    if any(example.label is None for example in examples):
        raise DataError(file.path, None, "has no labels to score by")
    return examples


def read_sentences(file: LabelledFile, spec: TaskSpec) -> list[WordsExample]:
    """Read tagged words. Types that the model does not know count as O.

    Raises DataError for what cannot be read, and where the model knows none of the types.
    """
    known = set(TagScheme.of(spec.labels).types)
    examples: list[WordsExample] = read_labelled(file, spec.task)
    types = {tag[2:] for example in examples for tag in example.labels if tag != "O"}
    if types and not types & known:
        unknown, wanted = ", ".join(sorted(types)), ", ".join(sorted(known))
        raise DataError(file.path, None, f"has the types {unknown}, and the model knows only {wanted}")
    return [_only_known(example, known) for example in examples]


def _numbered(file: LabelledFile, spec: TaskSpec) -> LabelledFile:
    """Let numbers in the file stand for the model's labels in their order, unless labels are numbers themselves."""
    if file.label_names or any(label.isdecimal() for label in spec.labels):
        return file
    return replace(file, label_names=list(spec.labels))


def _only_known(example: WordsExample, known: set[str]) -> WordsExample:
    labels = tuple(tag if tag[2:] in known else "O" for tag in example.labels)
    return WordsExample(example.words, labels, example.id)


class _ClassificationDev:
    """Texts or pairs with labels, or with numbers."""

    def __init__(self, file: LabelledFile, spec: TaskSpec, tokenizer: Tokenizer, limit: int | None) -> None:
        if spec.problem_type == "multi_label":
            raise ExportError("multi-label data is not scored at export; leave --dev out")
        if spec.problem_type == "regression" and len(spec.labels) > 1:
            raise ExportError("a regression of several numbers is not scored at export; leave --dev out")
        self._spec = spec
        self.metric = "spearman" if spec.problem_type == "regression" else "accuracy"
        rows = read_texts(file, spec)[:limit]
        self._gold = [_number(row) if self.metric == "spearman" else self._class(row) for row in rows]
        firsts = tokenizer.pieces([row.text for row in rows])
        seconds = [row.text_pair for row in rows if row.text_pair is not None]
        if spec.pair and not seconds:
            raise DataError(file.path, 1, "has one text a line, and the model reads pairs")
        if seconds and spec.pair is False:
            raise DataError(
                file.path,
                1,
                "has two texts a line, and the model is exported for one; --pair if it reads two",
            )
        if seconds:
            pairs = zip(firsts, tokenizer.pieces(seconds), strict=True)
            encodings = [tokenizer.pair(a, b, spec.max_tokens, truncate=True) for a, b in pairs]
        else:
            encodings = [tokenizer.single(pieces, spec.max_tokens, truncate=True) for pieces in firsts]
        self.texts = [make_text(encoding, spec.task) for encoding in encodings]

    def _class(self, row: TextExample) -> int:
        return self._spec.labels.index(str(row.label))

    def score(self, outputs: Sequence[Floats]) -> float:
        predicted = classification.predict(np.concatenate(outputs), self._spec)
        if self._spec.problem_type == "regression":
            return spearman(self._gold, predicted)
        return accuracy(self._gold, predicted)


class _NerDev:
    """Sentences with tagged words; words are read as training and the service read them."""

    metric = "entity_f1"

    def __init__(self, file: LabelledFile, spec: TaskSpec, tokenizer: Tokenizer, limit: int | None) -> None:
        self._spec = spec
        self._sentences = read_sentences(file, spec)[:limit]
        self._pieces = tokenizer.pieces([join_words(sentence.words) for sentence in self._sentences])
        self._windows = [tokenizer.windows(p, spec.max_tokens, spec.stride) for p in self._pieces]
        self.texts = [make_text(w.encoding, spec.task) for windows in self._windows for w in windows]

    def score(self, outputs: Sequence[Floats]) -> float:
        left = iter(outputs)
        found = [
            ner.tags_of(sentence.words, pieces, windows, [next(left) for _ in windows], self._spec)
            for sentence, pieces, windows in zip(self._sentences, self._pieces, self._windows, strict=True)
        ]
        return entity_f1([list(sentence.labels) for sentence in self._sentences], found).f1


class _QaDev:
    """Questions about paragraphs."""

    metric = "f1"

    def __init__(self, file: LabelledFile, spec: TaskSpec, tokenizer: Tokenizer, limit: int | None) -> None:
        self._spec = spec
        rows: list[QaExample] = read_labelled(file, "qa")
        self._rows = rows[:limit]
        questions = tokenizer.pieces([row.question for row in self._rows])
        contexts = tokenizer.pieces([row.context for row in self._rows])
        self._windows = [
            qa.encode(tokenizer, question, context, spec)
            for question, context in zip(questions, contexts, strict=True)
        ]
        self.texts = [make_text(w.encoding, spec.task) for windows in self._windows for w in windows]

    def score(self, outputs: Sequence[Floats]) -> float:
        left = iter(outputs)
        golds = [[text for text, _ in row.answers] for row in self._rows]
        answers = [
            decode(row.context, windows, [next(left) for _ in windows], self._spec)
            for row, windows in zip(self._rows, self._windows, strict=True)
        ]
        spans = [answer.best.text if answer.best else "" for answer in answers]
        return squad_scores(golds, spans, [answer.answer or "" for answer in answers])["f1"]


class _SimilarityDev:
    """Pairs of texts with a number that says how alike they are."""

    metric = "spearman"

    def __init__(self, file: LabelledFile, spec: TaskSpec, tokenizer: Tokenizer, limit: int | None) -> None:
        self._similarity = spec.similarity
        rows = read_texts(file, spec)[:limit]
        self._gold = [_number(row) for row in rows]
        pairs = [(row.text, row.text_pair) for row in rows if row.text_pair is not None]
        pieces = tokenizer.pieces([text for pair in pairs for text in pair])
        encodings = [tokenizer.single(p, spec.max_tokens, truncate=True) for p in pieces]
        self.texts = [make_text(encoding, spec.task) for encoding in encodings]

    def score(self, outputs: Sequence[Floats]) -> float:
        vectors = np.concatenate(outputs)
        likeness = similarity.likeness(vectors[::2], vectors[1::2], self._similarity)
        return spearman(self._gold, likeness)


def _number(row: TextExample) -> float:
    assert isinstance(row.label, float)  # the reader was told so
    return row.label


_DEV_SETS: dict[str, Callable[[LabelledFile, TaskSpec, Tokenizer, int | None], DevSet]] = {
    "classification": _ClassificationDev,
    "ner": _NerDev,
    "qa": _QaDev,
    "similarity": _SimilarityDev,
}
