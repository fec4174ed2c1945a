"""Finished rows to JSON lines, csv or tsv.

A finished row is a JSON line, with all its columns. `Output.write` makes the content of the output of such lines: at once on
standard output, else of the journal when all rows are done.
"""

import base64
import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson

from bert.data.tables import Dialect
from bert.errors import ConfigError
from service.bulk.input import InputRow, values_of
from service.bulk.text_input import parse_json

READ_BYTES = 2**20
"""Size of the lines that are converted together, about."""
_ONE_LINE = "has a tab or a line end, which tsv cannot hold: write csv or jsonl"


def is_vector(kind: Any) -> bool:
    """Tell whether a column of BulkTask holds vectors."""
    return isinstance(kind, type) and issubclass(kind, np.number)


class Output:
    """The output as JSON lines, which are the finished rows as they are; other formats are its subclasses."""

    def line(self, row: InputRow, new: Mapping[str, Any]) -> bytes:
        """Return a finished row. What came as JSON stays byte for byte, with the new columns after it."""
        if row.is_object and row.values and new.keys().isdisjoint(row.values):
            return row.raw[:-1].rstrip().encode() + b"," + to_json(new)[1:] + b"\n"
        return to_json({**values_of(row), **new}) + b"\n"

    def refusal(self, row: InputRow, new: Mapping[str, Any]) -> str:
        """Return why the format cannot hold a row; empty if it can."""
        return ""

    def begin(self, file: IO[bytes]) -> None:
        """Start to write to a file."""
        self._file = file

    def write(self, lines: Iterable[bytes]) -> None:
        """Append finished rows. Raises OSError."""
        self._file.write(b"".join(lines))

    def end(self) -> None:
        """Write what is left. Raises OSError."""


def convert(
    lines: Path, output: Output, target: Path, stopped: Callable[[], bool], *, is_compressed: bool
) -> bool:
    """Write a file of finished rows in the output's format, and bring it to the disk; False after a stop. Raises OSError."""
    with lines.open("rb") as source, target.open("wb") as file:
        with _packed(file) if is_compressed else nullcontext(file) as content:
            output.begin(content)
            while some := source.readlines(READ_BYTES):
                output.write(some)
                if stopped():
                    return False
            output.end()
        file.flush()
        os.fsync(file.fileno())
    return True


def _packed(file: IO[bytes]) -> IO[bytes]:
    """Return a gzip stream into a file, without the time and the name of the file."""
    return cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename=""))


def to_json(value: object) -> bytes:
    """Serialise a value; what JSON has no form for (a date, bytes, a decimal) as its text; bytes in base64."""
    try:
        return orjson.dumps(
            value, default=_as_text, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        )
    except orjson.JSONEncodeError:  # a whole number over 64 bits
        return json.dumps(value, default=_as_text, ensure_ascii=False, separators=(",", ":")).encode()


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


class SeparatedOutput(Output):
    """Csv or tsv under a line of names; values with a structure are JSON. Without quotes a cell is one line."""

    def __init__(self, columns: Sequence[str], new: Mapping[str, Any], dialect: Dialect) -> None:
        """Name the columns of the input and the new ones. Raises ConfigError for a name that the format cannot hold."""
        self._known, self._names, self._dialect = set(columns), [*columns, *new], dialect
        self._vectors = {name: kind for name, kind in new.items() if is_vector(kind)}
        self._special = re.compile(f"[{re.escape(dialect.separator)}\r\n{chr(34) if dialect.quoted else ''}]")
        if wrong := self._not_held(self._names):
            raise ConfigError(f"the column {wrong!r} {_ONE_LINE}")

    def refusal(self, row: InputRow, new: Mapping[str, Any]) -> str:
        """Refuse a column that has no name in the first line, and a cell that does not fit."""
        if unknown := next((name for name in row.values if name not in self._known), None):
            return f"has a column {unknown!r}, which the first rows have not: write jsonl"
        if not self._dialect.quoted and (wrong := self._not_held(self._cells({**values_of(row), **new}))):
            return f"the text {wrong[:60]!r} {_ONE_LINE}"
        return ""

    def begin(self, file: IO[bytes]) -> None:
        """Write the names."""
        super().begin(file)
        file.write(self._encoded(self._names))

    def write(self, lines: Iterable[bytes]) -> None:
        """Append finished rows."""
        self._file.write(b"".join(self._encoded(self._cells(parse_json(line))) for line in lines))

    def _cells(self, values: dict[str, Any]) -> list[str]:
        for name, kind in self._vectors.items():
            if values.get(name) is not None:
                values[name] = np.asarray(values[name], kind)  # shorter numbers than those of float64
        return [_cell(values.get(name)) for name in self._names]

    def _encoded(self, cells: Sequence[str]) -> bytes:
        return f"{self._dialect.separator.join(map(self._quoted, cells))}\n".encode()

    def _quoted(self, cell: str) -> str:
        is_plain = not self._dialect.quoted or not self._special.search(cell)
        return cell if is_plain else '"' + cell.replace('"', '""') + '"'

    def _not_held(self, cells: Sequence[str]) -> str | None:
        """Return a cell that cannot be written, because the format has no quotes."""
        if self._dialect.quoted:
            return None
        return next((cell for cell in cells if self._special.search(cell)), None)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    is_nothing = value is None or (isinstance(value, float) and not math.isfinite(value))
    if is_nothing:
        return ""
    text = to_json(value)
    return orjson.loads(text) if text.startswith(b'"') else text.decode()
