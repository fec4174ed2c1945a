"""Rows with their new columns to json lines, csv or tsv: appended to a file that a killed run can go on with."""

import base64
import gzip
import json
import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from bert.data.tables import Dialect
from bert.errors import ConfigError
from service.bulk.rows import InputRow

Refused = dict[int, str]
"""Index of a row that the format cannot hold → the reason."""
Written = tuple[InputRow, Mapping[str, Any]]
"""A row and its new columns."""


_ONE_LINE = "has a tab or a line end, which tsv cannot hold: write csv or jsonl"


class AppendedFile:
    """A file that grows, and is cut back to what was recorded as safe; compressed in members of their own."""

    def __init__(self, path: Path | None, kept_bytes: int, *, is_compressed: bool) -> None:
        """Open a file and cut it to `kept_bytes`; None is standard output.

        Raises OSError, and ConfigError for a file that is shorter.
        """
        if kept_bytes and path is not None and (not path.exists() or path.stat().st_size < kept_bytes):
            raise ConfigError(f"{path} is shorter than recorded: begin again with --restart")
        self.path = path
        self._file: IO[bytes] = sys.stdout.buffer if path is None else path.open("ab")
        self._is_compressed = is_compressed
        if path is not None:
            self._file.truncate(kept_bytes)
            self._file.seek(0, os.SEEK_END)
        self._member: gzip.GzipFile | None = None

    def write(self, content: bytes) -> None:
        """Append bytes. Raises OSError."""
        if not self._is_compressed:
            self._file.write(content)
            if self.path is None:
                self._file.flush()
            return
        if self._member is None:
            self._member = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=6, mtime=0, filename="")
        self._member.write(content)

    def sync(self) -> int:
        """Bring everything to the disk; return the file's size. Raises OSError."""
        if self._member is not None:
            self._member.close()
            self._member = None
        self._file.flush()
        if self.path is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file without bringing it to the disk."""
        if self.path is not None:
            self._file.close()


class TextWriter(ABC):
    """An output of text."""

    _file: AppendedFile

    @abstractmethod
    def write(self, rows: Sequence[Written]) -> Refused:
        """Append rows, but for those that the format cannot hold. Raises OSError."""

    def sync(self) -> int:
        """Bring everything to the disk; return the file's size. Raises OSError."""
        return self._file.sync()

    def finish(self) -> Path | None:
        """Return the whole output; None for standard output."""
        return self._file.path

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonLinesWriter(TextWriter):
    """An object a line. What came as json lines stays byte for byte, with the new columns after it."""

    def __init__(self, file: AppendedFile, values_of: Callable[[InputRow], Mapping[str, Any]]) -> None:
        """`values_of` gives all columns of a row that did not come as json lines."""
        self._file, self._values_of = file, values_of

    def write(self, rows: Sequence[Written]) -> Refused:
        """Append rows."""
        self._file.write(b"".join(self._line(row, new) for row, new in rows))
        return {}

    def _line(self, row: InputRow, new: Mapping[str, Any]) -> bytes:
        is_json = row.raw.startswith("{") and row.raw.endswith("}")
        if row.values and is_json and new.keys().isdisjoint(row.values):
            return row.raw[:-1].rstrip().encode() + b"," + to_json(new)[1:] + b"\n"
        return to_json({**self._values_of(row), **new}) + b"\n"


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


class SeparatedWriter(TextWriter):
    """Csv or tsv under a line of names; values with a structure are JSON. Without quotes a cell is one line."""

    def __init__(
        self,
        file: AppendedFile,
        columns: Sequence[str],
        new: Sequence[str],
        dialect: Dialect,
        values_of: Callable[[InputRow], Mapping[str, Any]],
        *,
        is_new: bool,
    ) -> None:
        """Write the names if the file `is_new`. Raises ConfigError for a name that the format cannot hold."""
        self._file, self._columns, self._new = file, list(columns), list(new)
        self._known, self._values_of = set(columns), values_of
        self._dialect = dialect
        self._special = re.compile(f"[{re.escape(dialect.separator)}\r\n{chr(34) if dialect.quoted else ''}]")
        if wrong := self._not_held([*columns, *new]):
            raise ConfigError(f"the column {wrong!r} {_ONE_LINE}")
        if is_new:
            self._file.write(self._encoded([[*columns, *new]]))

    def write(self, rows: Sequence[Written]) -> Refused:
        """Append rows; refuse those with a column that has no name in the first line, or a cell that does not fit."""
        refused, lines = Refused(), list[list[str]]()
        for index, (row, new) in enumerate(rows):
            values = self._values_of(row)
            if not self._known.issuperset(values):
                unknown = next(name for name in values if name not in self._known)
                refused[index] = f"has a column {unknown!r}, which the first rows have not: write jsonl"
                continue
            cells = [values.get(name) for name in self._columns] + [new.get(name) for name in self._new]
            line = [_cell(value) for value in cells]
            if wrong := self._not_held(line):
                refused[index] = f"the text {wrong[:60]!r} {_ONE_LINE}"
                continue
            lines.append(line)
        self._file.write(self._encoded(lines))
        return refused

    def _encoded(self, lines: Sequence[Sequence[str]]) -> bytes:
        separator = self._dialect.separator
        return "".join(f"{separator.join(map(self._quoted, line))}\n" for line in lines).encode()

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
