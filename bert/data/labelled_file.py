"""One file of labelled data and how it is read: what a user says of it, and what `task.json` records."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from bert.errors import ConfigError

FORMATS = ("auto", "glue", "csv", "tsv", "jsonl", "conll", "squad", "codah", "swag", "hub")


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
        if self.format not in FORMATS:
            raise ConfigError(f"format is {self.format!r}; known are {', '.join(FORMATS)}")

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
