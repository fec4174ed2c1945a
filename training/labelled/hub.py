"""Labelled data sets of the hub, or local folders of them, read into examples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.data.files import COMPRESSED, Problems, ending
from bert.data.open_entities import with_open_labels
from bert.data.read import Labels, text_columns
from bert.data.rows import text_examples
from bert.data.squad import Question, squad_examples
from bert.data.tables import refuse_missing
from bert.data.tagged_words import UnnamedTagsError, tagged_words
from bert.errors import DataError
from training.corpus.open_dataset import open_dataset
from training.data_file import DataFile
from training.labelled.choice import SWAG_ENDINGS, Raw, choice_examples
from training.settings import FinetuneSettings

Row = Mapping[str, Any]
_FILE_ENDINGS = (".csv", ".tsv", ".tab", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".conll", ".arrow")


class HubData:
    """One split of a data set of the hub (`glue`), or of a local folder of files or of `save_to_disk`."""

    def __init__(self, file: DataFile) -> None:
        """Load it. Raises DataError."""
        name = str(file.path)
        self.source = "/".join(part for part in (name, file.hub_config, file.hub_split) if part)
        """Name of the data in messages."""
        if reason := _not_of_the_hub(name):
            raise DataError(self.source, None, reason)
        if file.hub_revision is not None and file.path.exists():
            raise DataError(
                self.source, None, f"is a folder here, which has no revision {file.hub_revision!r}"
            )
        self._data = open_dataset(
            name, file.hub_split, file.hub_config, file.hub_revision, source=self.source
        )

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self._data.column_names)

    def rows(self, *needed: str) -> Iterator[Row]:
        """Yield the rows, class numbers already named. Raises DataError where a needed column is missing."""
        refuse_missing(self.source, needed, self._data.column_names, None)
        names = _class_names(self._data.features)
        for row in self._data:
            yield {column: _named(value, names.get(column)) for column, value in row.items()}


def read_hub(file: DataFile, settings: FinetuneSettings, labels: Labels) -> list[Any]:
    """Read a data set; with `labels`, any other label is an error.

    Class numbers become the names that the data set gives them, and -1 is no label. Raises DataError, with the number of
    the row where one is at fault.
    """
    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "qa": lambda: _read_questions(HubData(file)),
        "ner": lambda: _read_words(HubData(file), file, labels),
        "open_ner": lambda: with_open_labels(_read_words(HubData(file), file, None)),
        "multiple_choice": lambda: _read_choices(HubData(file), file.columns),
    }
    read = readers.get(settings.task, lambda: _read_texts(HubData(file), file, settings, labels))
    return list(read())


def _read_texts(
    data: HubData, file: DataFile, settings: FinetuneSettings, labels: Labels
) -> list[TextExample]:
    columns = text_columns(file.labelled, settings.task, settings.problem, labels, data.columns)
    rows = enumerate(data.rows(*columns.named), 1)
    return text_examples(data.source, rows, columns, Problems(data.source))


def _read_words(data: HubData, file: DataFile, labels: Labels) -> list[WordsExample]:
    """Read sentences, a list of words and one of tags a row."""
    words, tags = file.columns.get("words", "tokens"), file.columns.get("tags", "ner_tags")
    problems, examples = Problems(data.source), []
    for number, row in enumerate(data.rows(words, tags), 1):
        try:
            example = tagged_words(
                row[words],
                row[tags],
                number,
                columns=(words, tags),
                names=file.label_names,
                label_map=file.label_map,
                labels=labels,
            )
        except UnnamedTagsError as error:
            raise DataError(data.source, None, str(error)) from None
        except ValueError as error:
            problems.add(number, str(error))
            continue
        if example.words:
            examples.append(example)
    if not examples and not len(problems):
        problems.add(None, "has no sentences")
    problems.raise_if_any()
    return examples


def _read_questions(data: HubData) -> list[QaExample]:
    """Read rows as `squad` and `squad_v2` have them."""
    rows = data.rows("id", "context", "question", "answers")
    return squad_examples(map(_question, rows), Problems(data.source), lambda _: None)


def _question(row: Row) -> Question:
    """Turn columns of texts and of starts into the list of answers that the json has."""
    answers = row["answers"] or {"text": [], "answer_start": []}
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    listed = [{"text": text, "answer_start": start} for text, start in pairs]
    question = {"id": row["id"], "question": row["question"], "answers": listed}
    return str(row.get("title") or ""), row["context"], question


def _read_choices(data: HubData, columns: Mapping[str, str]) -> list[ChoiceExample]:
    """Read a prompt and its choices: `choices` names a column for each, with commas between, or one column with a list.

    `start` is a column that goes before every choice; `swag` needs start="sent2".
    """
    prompt, label, start = columns.get("prompt", "sent1"), columns.get("label", "label"), columns.get("start")
    choices = [name.strip() for name in columns.get("choices", ",".join(SWAG_ENDINGS)).split(",")]

    def raw(number: int, row: Row) -> Raw:
        values = row[choices[0]] if len(choices) == 1 else [row[name] for name in choices]
        before = f"{row[start]} " if start else ""
        texts = [f"{before}{value}" if value else "" for value in values]  # an empty one must stay empty
        return number, str(row[prompt]), texts, str(row[label])

    rows = enumerate(data.rows(prompt, *choices, label, *([start] if start else [])), 1)
    return choice_examples((raw(number, row) for number, row in rows), Problems(data.source))


def _not_of_the_hub(name: str) -> str | None:
    """Return why a name is not that of a data set. The library would ask the network for a local or mistyped file."""
    path = Path(name)
    if path.is_file():
        return "is a file here; `format: hub` reads folders and data sets of the hub: leave `format` out, or name the file's"
    is_path = path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2
    if not path.exists() and (is_path or ending(path) in _FILE_ENDINGS or path.suffix.lower() in COMPRESSED):
        return "is not there, and is no name of a data set of the hub (name, or owner/name)"
    return None


def _class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of class numbers for each column that holds such, alone or in lists."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: list(feature.names) for column, feature in inner.items() if hasattr(feature, "names")}


def _named(value: Any, names: list[str] | None) -> Any:
    if names is None or value is None:
        return value
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if value >= 0 else None  # the hub writes -1 where a test set has no label
