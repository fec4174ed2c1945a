"""Labelled files, and their examples: one frozen class for each kind of task; nothing is tokenised yet."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from bert.errors import ConfigError

Format = Literal["auto", "glue", "csv", "tsv", "jsonl", "conll", "squad", "codah", "swag", "hub"]
"""Formats of a file; auto goes by the task, the ending and the content."""


@dataclass(frozen=True)
class LabelledFile:
    """A file's path, format and columns; docs/data-formats.md says what each field is for."""

    # Read by pydantic, where settings hold such a file: names that are not known are refused.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    path: Path
    format: str = "auto"
    columns: dict[str, str] = field(default_factory=dict)
    label_map: dict[str, str | None] = field(default_factory=dict)
    label_names: list[str] = field(default_factory=list)
    skip_empty: bool = False
    glue_task: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown format."""
        if self.format not in get_args(Format):
            raise ConfigError(f"format is {self.format!r}; known are {', '.join(get_args(Format))}")

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        default = LabelledFile(self.path)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: v for name, v in values.items() if name == "path" or v != getattr(default, name)}

    def record(self) -> dict[str, Any]:
        """Return path and reading as `task.json` has them."""
        return {**self.given(), "path": str(self.path)}

    def with_columns(self, columns: Mapping[str, str]) -> str:
        """Return the file with these columns as a shell wants it in place of its path; inside the quotes it is YAML too."""
        return shlex.quote(json.dumps({**self.record(), "columns": dict(columns)}, ensure_ascii=False))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "LabelledFile":
        """Build from what `record` returned. Raises ConfigError for anything but a record of a file."""
        names = {f.name for f in fields(cls)}
        if not isinstance(values, Mapping) or not isinstance(values.get("path"), str):
            raise ConfigError(f"{values!r} is not a record of a file: it has no path")
        known = {name: value for name, value in values.items() if name in names}
        for name, kind in (("columns", dict), ("label_map", dict), ("label_names", list)):
            if not isinstance(known.get(name, kind()), kind):
                raise ConfigError(f"{name} of {values['path']} is {known[name]!r}")
        return cls(**{**known, "path": Path(values["path"])})


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or a pair with its label: classification, regression, multi-label, similarity.

    `label` is a name (one of several classes), a float (regression, similarity), a tuple of names
    (multi-label; may be empty) or None (an unlabelled text, or two that belong together).
    """

    text: str
    text_pair: str | None
    label: str | float | tuple[str, ...] | None
    id: str
    negatives: tuple[str, ...] | None = None
    """Texts that do not belong to `text`, as `text_pair` does (similarity). None: the label says how alike two are."""


@dataclass(frozen=True, slots=True)
class WordsExample:
    """One sentence as words, with one BIO label a word."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    id: str


@dataclass(frozen=True, slots=True)
class EntitiesExample:
    """One text with entities of any labels, which may overlap."""

    text: str
    words: tuple[tuple[int, int], ...]
    """Start and end of each word, in code points."""
    entities: tuple[tuple[int, int, str], ...]
    """First word, last word and label of each."""
    id: str
    labels: tuple[str, ...] | None = None
    """Labels that training asks the text for; None: those of its entities, and others that it has none of."""
    negatives: tuple[str, ...] | None = None
    """Those others; None: labels of other texts."""


@dataclass(frozen=True, slots=True)
class QaExample:
    """One question about one paragraph.

    `answers` are (text, start) with `context[start:start + len(text)] == text`, in code points; empty means
    that the paragraph has no answer. `title` names the article, and is empty where the data has none.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    title: str


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A prompt and its possible endings; `label` is the index of the right one."""

    prompt: str
    choices: tuple[str, ...]
    label: int
    id: str
