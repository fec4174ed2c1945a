"""Rows of json lines, csv and tsv, read one by one from a file, a compressed file or standard input."""

import csv
import gzip
import json
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import orjson

from bert.data.files import NOT_UNICODE, holds_unicode
from bert.data.tables import DIALECTS, dialect_of
from bert.errors import DataError
from service.bulk.input import STREAM, InputRow

MAX_ROW_BYTES = 2**26
"""Longest line."""
MAX_QUOTED_BYTES = 2**20
"""Longest row of csv over several lines: beyond it a quote was not closed."""
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class TextInput:
    """Lines of a file or of standard input; its subclasses make rows of them."""

    def __init__(self, name: str, *, is_compressed: bool) -> None:
        """Open the input. Raises DataError."""
        self.name = "standard input" if name == STREAM else name
        self._size = 0
        try:
            self._file: IO[bytes] = sys.stdin.buffer if name == STREAM else open(name, "rb")  # noqa: SIM115
            if name != STREAM:
                self._size = Path(name).stat().st_size
        except OSError as error:
            raise DataError(name, None, f"cannot be read: {error.strerror}") from None
        self._stream: Any = gzip.GzipFile(fileobj=self._file) if is_compressed else self._file
        self._number = 0
        self._returned = deque[tuple[int, bytes]]()

    def __iter__(self) -> Self:
        """Return itself: lines that are given back come even after the end."""
        return self

    def __next__(self) -> tuple[int, bytes]:
        """Return number and bytes of the next line, its end included. Raises DataError for a damaged file."""
        if self._returned:
            return self._returned.popleft()
        try:
            line = self._stream.readline(MAX_ROW_BYTES + 1)
            if len(line) > MAX_ROW_BYTES:
                while (rest := self._stream.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
                    pass
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(self.name, self._number + 1, f"cannot be read on: {error}") from None
        if not line:
            raise StopIteration
        self._number += 1
        if self._number == 1:
            if line.startswith(_UTF_16):
                raise DataError(self.name, None, "is UTF-16; save the file as UTF-8")
            if b"\0" in line:
                raise DataError(self.name, 1, "has NUL bytes, as UTF-16 does; save the file as UTF-8")
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return self._number, line

    def give_back(self, lines: list[tuple[int, bytes]]) -> None:
        """Yield these lines again, before the others."""
        self._returned.extendleft(reversed(lines))

    def share_read(self) -> float | None:
        """Return the share of the file's bytes that were read; None for standard input."""
        return min(1.0, self._file.tell() / self._size) if self._size else None

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()


class JsonLines(TextInput):
    """Objects, one a line."""

    columns = None

    def rows(self) -> Iterator[InputRow]:
        """Yield the rows. Raises DataError for a file that is one list."""
        number = 0
        for line, content in self:
            text = content.strip()
            if not text:
                continue
            number += 1
            if number == 1 and text.startswith(b"["):
                raise DataError(
                    self.name, line, "is a JSON list; jsonl has an object on each line (jq -c '.[]')"
                )
            yield _json_row(number, line, text)


def _json_row(number: int, line: int, text: bytes) -> InputRow:
    row = InputRow(number, line, raw=text.decode(errors="replace"))
    if len(text) > MAX_ROW_BYTES:
        row.raw, row.fault = row.raw[:1000], f"is longer than {MAX_ROW_BYTES} bytes"
        return row
    value: Any = None
    try:
        value = parse_json(text)
        if not holds_unicode(value):
            row.fault = NOT_UNICODE
    except (ValueError, RecursionError) as error:
        row.fault = f"is not JSON: {error}" if _is_utf8(text) else "is not UTF-8"
    if not row.fault and not isinstance(value, dict):
        row.fault = f"is {row.raw[:60]} instead of an object"
    if not row.fault:
        row.values, row.is_object = value, True
    return row


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text, also of one that only Python reads. Raises ValueError and RecursionError."""
    if _LONG_NUMBER.search(text):  # orjson makes floats of whole numbers over 64 bits
        return json.loads(text)
    try:
        return orjson.loads(text)
    except ValueError as error:
        with suppress(ValueError, RecursionError):  # NaN, half of a surrogate pair
            return json.loads(text)
        raise error


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class SeparatedRows(TextInput):
    """Records of csv or tsv under a line of names."""

    columns: list[str]

    def read_names(self, kind: str, needed: tuple[str, ...]) -> None:
        """Read the names; `needed` columns tell what separates them. Raises DataError for a file without names."""
        csv.field_size_limit(sys.maxsize)
        first = next((found for found in self if found[1].strip()), None)
        if first is None:
            raise DataError(self.name, None, "is empty")
        try:
            header = (self._whole_header(first[1]) if kind == "csv" else first[1]).decode()
        except UnicodeDecodeError:
            raise DataError(self.name, first[0], "is not UTF-8; save the file as UTF-8") from None
        self.dialect, self.columns = dialect_of(header.rstrip("\r\n"), f".{kind}", needed)
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if twice:
            raise DataError(self.name, first[0], f"has two columns {twice[0]!r}")
        self._scanned = 0
        """Last line that was looked through for the end of a quote in vain."""

    def _whole_header(self, header: bytes) -> bytes:
        """Return the line of names, with those after it as long as a name's quote is open."""
        whole, more = header, list[tuple[int, bytes]]()
        while _has_open_quote(whole) and len(whole) < MAX_QUOTED_BYTES:
            found = next(self, None)
            if found is None:
                break
            more.append(found)
            whole += found[1]
        if not _has_open_quote(whole):
            return whole
        self.give_back(more)
        return header

    def rows(self) -> Iterator[InputRow]:
        """Yield the rows."""
        number, width = 0, len(self.columns)
        for line, content in self:
            if not content.strip():
                continue
            number += 1
            row = InputRow(number, line)
            try:
                row.raw = content.decode().rstrip("\r\n")
                if len(content) > MAX_ROW_BYTES:
                    row.raw, row.fault = row.raw[:1000], f"is longer than {MAX_ROW_BYTES} bytes"
                elif self.dialect.quoted and b'"' in content:
                    fields = self._quoted(row, line, content)
                else:
                    fields = row.raw.split(self.dialect.separator)
            except UnicodeDecodeError:
                row.raw, row.fault = content.decode(errors="replace").rstrip("\r\n"), "is not UTF-8"
            if not row.fault and len(fields) != width:
                row.fault = f"has {len(fields)} columns instead of {width}"
            if not row.fault:
                row.values = dict(zip(self.columns, fields, strict=True))
            yield row

    def _quoted(self, row: InputRow, line: int, content: bytes) -> list[str]:
        """Return the fields of a record that may go on over several lines; of a broken one the first line is bad."""
        more = list[tuple[int, bytes]]()

        def texts() -> Iterator[str]:
            yield content.decode()
            size = len(content)
            # Lines that are inside of one quote up to a place are so of any other: none of them is searched twice.
            while line >= self._scanned and size <= MAX_QUOTED_BYTES:
                found = next(self, None)
                if found is None:
                    return
                more.append(found)
                size += len(found[1])
                yield found[1].decode()

        try:
            fields = next(csv.reader(texts(), delimiter=self.dialect.separator, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            # What follows may be sound rows: a quote that is not closed takes only its own line away.
            self.give_back(more)
            row.fault = f"is not csv: {error}" if isinstance(error, csv.Error) else "is not UTF-8"
            if more or _is_open(error):
                row.fault = "is not csv: a quote is not closed"
                self._scanned = max(self._scanned, more[-1][0] if more else line)
            return []
        row.raw += "".join("\n" + found.decode().rstrip("\r\n") for _, found in more)
        return fields


def _is_open(error: Exception) -> bool:
    return "unexpected end of data" in str(error)


def _has_open_quote(header: bytes) -> bool:
    """Tell whether a name goes on after the line's end, by any separator."""
    for separator in {dialect.separator for dialect in DIALECTS[".csv"]}:
        try:
            next(csv.reader([header.decode()], delimiter=separator, strict=True), None)
        except csv.Error as error:
            if _is_open(error):
                return True
    return False


def open_text(
    name: str, kind: str, needed: tuple[str, ...], *, is_compressed: bool
) -> JsonLines | SeparatedRows:
    """Open json lines, csv or tsv. Raises DataError."""
    if kind == "jsonl":
        return JsonLines(name, is_compressed=is_compressed)
    rows = SeparatedRows(name, is_compressed=is_compressed)
    try:
        rows.read_names(kind, needed)
    except BaseException:
        rows.close()
        raise
    return rows
