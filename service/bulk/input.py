"""A row of an input, and the formats by the endings of files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert.errors import ConfigError, DataError

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
}
"""Ending → format; all but parquet may have .gz after it."""
STREAM = "-"
"""Name of standard input and of standard output."""


@dataclass(slots=True)
class InputRow:
    """A row as it was read."""

    number: int
    """Counted from 1; blank lines do not count."""
    line: int | None = None
    """Its first line, counted from 1; None where the format has none."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Column → value; empty where the row cannot be read. Of parquet only the columns that a task reads."""
    raw: str = ""
    """Text of the row; empty in parquet."""
    is_object: bool = False
    """True if `raw` is a JSON object, that of `values`."""
    fault: str = ""
    """Reason why the row is bad; empty as long as it is not."""
    place: tuple[Any, int] | None = None
    """In parquet, its record batch and its index there."""


def values_of(row: InputRow) -> Mapping[str, Any]:
    """Return all columns of a row, also of parquet. Raises DataError for a value that Python has no form for."""
    if row.place is None:
        return row.values
    batch, index = row.place
    try:
        found: Mapping[str, Any] = batch.readable.slice(index, 1).to_pylist()[0]
    except (OverflowError, ValueError) as error:  # a duration that Python has no form for
        raise DataError("the input", None, f"row {row.number}: {error}: write parquet") from None
    return found


def format_of(name: str, named: str | None, setting: str) -> tuple[str, bool]:
    """Return the format of a file, and whether it is compressed; `named` is what the `setting` says.

    Raises ConfigError for an ending that no format has.
    """
    if name == STREAM:
        return named or "jsonl", False
    path = Path(name)
    is_compressed = path.suffix.lower() == ".gz"
    ending = (path.with_suffix("") if is_compressed else path).suffix.lower()
    found = named or FORMATS.get(ending)
    if found is None or (found == "parquet" and is_compressed):
        known = ", ".join(FORMATS)
        raise ConfigError(
            f"{name}: the ending {path.suffix or '(none)'} is of no format; known are {known}, and .gz after those of "
            f"text; {setting} names another file's format"
        )
    return found, is_compressed
