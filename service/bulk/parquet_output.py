"""Finished rows to parquet."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from service.bulk.input import InputRow
from service.bulk.output import Output, is_vector, to_json
from service.bulk.parquet_input import ParquetRows
from service.bulk.text_input import parse_json

GROUP_ROWS, GROUP_BYTES = 2**14, 2**25
"""Most rows and bytes, about, of a row group in the output."""
NO_FIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Errors of a value that is not of its column's type."""


class ParquetOutput(Output):
    """Parquet. Of a parquet input a finished row is its number and its new columns: the others are read again at the end.

    So they keep their types.
    """

    def __init__(
        self, reader: Any, columns: Sequence[str], first: Sequence[InputRow], new: Mapping[str, Any]
    ) -> None:
        """Take the types of the input's columns from the `reader` of parquet, else from the `first` rows."""
        self._reader = reader if isinstance(reader, ParquetRows) else None
        self._old = self._reader.schema if self._reader else _schema_of(columns, first)
        self._typed = [field for field in self._old if not pa.types.is_string(field.type)]
        """Columns that do not take every value, as its JSON."""
        self._new = new
        self._writer: Any = None
        self._tables, self._rows, self._bytes = list[Any](), 0, 0

    def line(self, row: InputRow, new: Mapping[str, Any]) -> bytes:
        """Return a finished row; of parquet its number and the new columns."""
        return super().line(row, new) if self._reader is None else to_json([row.number, new]) + b"\n"

    def refusal(self, row: InputRow, new: Mapping[str, Any]) -> str:
        """Refuse a row with another column, or a value of another type, than the first ones."""
        if self._reader is not None:
            return ""
        try:
            if unknown := next((name for name in row.values if name not in self._old.names), None):
                raise ValueError(f"a column {unknown!r}, which the first rows have not")
            for field in self._typed:
                pa.array([row.values.get(field.name)], field.type)
        except NO_FIT as error:
            return f"does not fit the columns' types in parquet: {error}"
        return ""

    def begin(self, file: IO[bytes]) -> None:
        """Start to write to a file."""
        super().begin(file)
        if self._reader is not None:
            self._taken = _TakenRows(self._reader.batches())

    def write(self, lines: Iterable[bytes]) -> None:
        """Append finished rows. Raises OSError, and DataError for an input that cannot be read again."""
        if self._reader is None:
            rows, old = [self._with_texts(parse_json(line)) for line in lines], []
        else:
            numbered = [orjson.loads(line) for line in lines]
            rows = [new for _, new in numbered]
            old = pa.Table.from_batches(self._taken.take([number for number, _ in numbered])).columns
        if self._writer is None:
            self._open(rows)
        new = pa.Table.from_pylist(rows, pa.schema(list(self._schema)[len(old) :]))
        table = pa.Table.from_arrays([*old, *new.columns], schema=self._schema)
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def end(self) -> None:
        """Write the last row group and the file's end. Raises OSError."""
        if self._writer is None:
            self._open([])
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._tables))
        self._tables, self._rows, self._bytes = [], 0, 0

    def _open(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Begin the file; vectors are as wide as the first of these rows."""
        schema = self._old
        for name, kind in self._new.items():
            vectors = (row[name] for row in rows if is_vector(kind) and row.get(name) is not None)
            width = len(next(vectors, [])) or -1
            schema = schema.append(pa.field(name, _type_of(kind, width)))
        self._schema = schema
        self._writer = pq.ParquetWriter(self._file, schema)

    def _with_texts(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of an input of text; where a column holds texts, other values are their JSON."""
        for field in self._old:
            value = row.get(field.name)
            if pa.types.is_string(field.type) and value is not None and not isinstance(value, str):
                row[field.name] = to_json(value).decode()
        return row


def _schema_of(columns: Sequence[str], first: Sequence[InputRow]) -> Any:
    """Return the types of the columns in some rows; text where the first row has no such column, or types differ."""
    rows = [row.values for row in first if row.values]
    kinds = []
    for name in columns:
        values = [row.get(name) for row in rows] if rows and name in rows[0] else []
        try:
            kind = pa.array(values).type
        except NO_FIT:
            kind = pa.string()
        kinds.append((name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(kinds)


def _type_of(kind: Any, width: int = -1) -> Any:
    """Return the arrow type of a column of BulkTask."""
    if isinstance(kind, list):
        return pa.list_(_type_of(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, _type_of(each)) for name, each in kind.items()])
    if is_vector(kind):
        return pa.list_(pa.from_numpy_dtype(kind), width)
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[kind]


class _TakenRows:
    """Some rows of an input, in its order."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._batch: Any = next(batches, None)
        self._before = 0
        """Rows before the batch."""

    def take(self, numbers: Sequence[int]) -> list[Any]:
        """Return the rows of these numbers, counted from 1, as record batches; each call goes on after the last."""
        found, at = list[Any](), 0
        while at < len(numbers):
            end = bisect_right(numbers, self._before + self._batch.num_rows, at)
            if places := [number - self._before - 1 for number in numbers[at:end]]:
                found.append(self._batch.take(pa.array(places)))
            at = end
            if at < len(numbers):
                self._before += self._batch.num_rows
                self._batch = next(self._batches)
        return found
