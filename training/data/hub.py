"""Labelled data sets of the hub, or local folders of them, read into examples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.compressed import COMPRESSED, ending
from bert.data.conll import to_bio
from bert.data.entity_json import UnnamedTagsError, named_tags
from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.data.files import Problems
from bert.data.rows import TextColumns, text_examples
from bert.data.squad import Question, squad_examples
from bert.data.tables import refuse_missing
from bert.errors import DataError
from training.corpus.open_dataset import open_dataset
from training.data.choice import Raw, choice_examples

Row = Mapping[str, Any]
_FILE_ENDINGS = (".csv", ".tsv", ".tab", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".conll", ".arrow")


@dataclass(frozen=True)
class HubData:
    """Data set of the hub (`glue`), or a local folder of files or of `save_to_disk`, and the part of it to read."""

    name: str
    split: str = "train"
    config: str | None = None
    """Part of a data set that has several, such as sst2 of glue."""
    revision: str | None = None
    """Commit, tag or branch of the hub; the data of a commit cannot change under a run."""

    @property
    def source(self) -> str:
        """Name of the data in messages."""
        return "/".join(part for part in (self.name, self.config, self.split) if part)


def read_hub_texts(data: HubData, columns: TextColumns) -> list[TextExample]:
    """Read texts; class numbers become the names that the data set gives them, and -1 is no label.

    Raises DataError, with the number of the row where one is at fault.
    """
    rows = _open(data, columns.named)
    return text_examples(data.source, enumerate(rows, 1), columns, Problems(data.source))


def read_hub_words(
    data: HubData,
    words: str = "tokens",
    tags: str = "ner_tags",
    label_map: Mapping[str, str | None] | None = None,
    labels: tuple[str, ...] | None = None,
    label_names: Sequence[str] = (),
) -> list[WordsExample]:
    """Read sentences, a list of words and one of tags a row.

    `label_names` name tags that are bare numbers. The other arguments are `read_conll`'s.
    """
    problems, examples = Problems(data.source), []
    for number, row in enumerate(_open(data, (words, tags)), 1):
        try:
            named = named_tags(row[tags], tags, label_names)
            example = _words_example(row[words], named, str(number), label_map, labels)
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


def read_hub_questions(data: HubData) -> list[QaExample]:
    """Read rows as `squad` and `squad_v2` have them: id, title, context, question, answers."""
    rows = _open(data, ("id", "context", "question", "answers"))
    return squad_examples(map(_question, rows), Problems(data.source), lambda _: None)


def read_hub_choices(
    data: HubData,
    prompt: str = "sent1",
    choices: tuple[str, ...] = ("ending0", "ending1", "ending2", "ending3"),
    label: str = "label",
    start: str | None = None,
) -> list[ChoiceExample]:
    """Read a prompt and its choices: a column each, or one column with a list of them.

    `start` is a column that goes before every choice; `swag` needs start="sent2".
    """
    needed = (prompt, *choices, label, *([start] if start else []))
    rows = _open(data, needed)
    raw = (_choice(number, row, prompt, choices, label, start) for number, row in enumerate(rows, 1))
    return choice_examples(raw, Problems(data.source))


def hub_columns(data: HubData) -> frozenset[str]:
    """Return the names of a data set's columns. Raises DataError."""
    return frozenset(_load(data).column_names)


def _open(data: HubData, needed: tuple[str, ...]) -> Iterator[Row]:
    """Open the data set and yield its rows, class numbers already named. Raises DataError."""
    dataset = _load(data)
    refuse_missing(data.source, needed, dataset.column_names, None)
    names = _class_names(dataset.features)
    for row in dataset:
        yield {column: _named(value, names.get(column)) for column, value in row.items()}


def _load(data: HubData) -> Any:
    if reason := _not_of_the_hub(data.name):
        raise DataError(data.source, None, reason)
    if data.revision is not None and Path(data.name).exists():
        raise DataError(data.source, None, f"is a folder here, which has no revision {data.revision!r}")
    return open_dataset(data.name, data.split, data.config, data.revision, source=data.source)


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


def _words_example(
    words: list[Any],
    tags: list[str],
    row_id: str,
    label_map: Mapping[str, str | None] | None,
    labels: tuple[str, ...] | None,
) -> WordsExample:
    """Build one sentence; raises ValueError with the reason."""
    if len(words) != len(tags):
        raise ValueError(f"has {len(words)} words and {len(tags)} tags")
    found = to_bio(tags, label_map)
    unknown = [tag for tag in found if labels is not None and tag not in labels]
    if unknown:
        raise ValueError(f"unknown label {unknown[0]!r}; known are {', '.join(labels or ())}")
    return WordsExample(tuple(map(str, words)), tuple(found), row_id)


def _question(row: Row) -> Question:
    """Turn columns of texts and of starts into the list of answers that the json has."""
    answers = row["answers"] or {"text": [], "answer_start": []}
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    listed = [{"text": text, "answer_start": start} for text, start in pairs]
    question = {"id": row["id"], "question": row["question"], "answers": listed}
    return str(row.get("title") or ""), row["context"], question


def _choice(
    number: int, row: Row, prompt: str, choices: tuple[str, ...], label: str, start: str | None
) -> Raw:
    values: Iterable[Any] = row[choices[0]] if len(choices) == 1 else [row[name] for name in choices]
    before = f"{row[start]} " if start else ""
    texts = [f"{before}{value}" if value else "" for value in values]  # an empty one must stay empty
    return number, str(row[prompt]), texts, str(row[label])
