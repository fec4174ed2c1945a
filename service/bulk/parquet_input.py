"""Rows of parquet: record batches are read one by one. Imported only where a file is parquet: pyarrow is an extra."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert.errors import DataError
from service.bulk.input import InputRow

READ_ROWS = 1024


class ParquetRows:
    """Rows of a parquet file."""

    def __init__(self, name: str) -> None:
        """Open the file. Raises DataError."""
        try:
            # With the defaults whole row groups are read ahead, which may be the whole file.
            self._file = pq.ParquetFile(name, pre_buffer=False, buffer_size=2**20)
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(name, None, f"cannot be read as parquet: {reason}") from None
        self._name = name
        self.schema = self._file.schema_arrow
        self.columns: list[str] = list(self.schema.names)
        if twice := [each for each in self.columns if self.columns.count(each) > 1]:
            self._file.close()
            raise DataError(name, None, f"has two columns {twice[0]!r}")
        self.total_rows: int = self._file.metadata.num_rows
        self._read = 0
        self.needed: tuple[str, ...] = ()
        """Columns whose values the rows have; the others stay in their batch."""

    def rows(self) -> Iterator[InputRow]:
        """Yield the rows. Raises DataError for a damaged file."""
        for batch in self.batches():
            names = [name for name in self.needed if name in self.columns]
            columns = [self._values(batch, name) for name in names]
            holder = _Batch(batch)
            values = zip(*columns, strict=True) if names else iter([()] * batch.num_rows)
            for index, each in enumerate(values):
                self._read += 1
                yield InputRow(self._read, values=dict(zip(names, each, strict=True)), place=(holder, index))

    def batches(self) -> Iterator[Any]:
        """Yield the file's record batches, from its beginning. Raises DataError for a damaged file."""
        try:
            yield from self._file.iter_batches(READ_ROWS)
        except (OSError, pa.ArrowException) as error:
            raise DataError(self._name, None, f"cannot be read on after row {self._read}: {error}") from None

    def _values(self, batch: Any, name: str) -> list[Any]:
        try:
            values: list[Any] = batch.column(name).to_pylist()
        except (OverflowError, ValueError):  # a date that Python has no form for
            kind = batch.schema.field(name).type
            raise DataError(self._name, None, f"the column {name!r} is of {kind} and not of texts") from None
        return values

    def share_read(self) -> float | None:
        """Return the share of the rows that were read."""
        return self._read / self.total_rows if self.total_rows else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Batch:
    """A record batch, and the same with dates and times as texts: Python has no form for all of them."""

    def __init__(self, records: Any) -> None:
        self.records = records

    @cached_property
    def readable(self) -> Any:
        columns = [_readable(each) for each in self.records.columns]
        return pa.RecordBatch.from_arrays(columns, names=self.records.schema.names)


def _readable(column: Any) -> Any:
    kind = _readable_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _readable_type(kind: Any) -> Any:
    """Return a type with texts where this one has dates and times, also in lists and structs."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pa.string()
    if types.is_list(kind):
        inner = _readable_type(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner)
    if types.is_struct(kind):
        fields = [(field.name, _readable_type(field.type)) for field in kind]
        return (
            kind
            if all(new == old.type for (_, new), old in zip(fields, kind, strict=True))
            else pa.struct(fields)
        )
    return kind
