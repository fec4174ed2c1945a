"""Rows to parquet: part files, which are joined at the end."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bert.files import sync
from service.bulk.parquet import READ_ROWS, pyarrow
from service.bulk.text_writers import Refused, Written, to_json

GROUP_ROWS, GROUP_BYTES = 2**14, 2**25
"""Most rows and bytes, about, of a row group in the output."""


class _GroupWriter:
    """A parquet file that is written in whole row groups."""

    def __init__(self, path: Path, schema: Any) -> None:
        """Begin the file. Raises OSError."""
        self._writer, self._arrow = pyarrow("pyarrow.parquet").ParquetWriter(path, schema), pyarrow()
        self._tables, self._rows, self._bytes = list[Any](), 0, 0

    def write(self, table: Any) -> None:
        """Append a table; its rows are written when a group is full. Raises OSError."""
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.concat_tables(self._tables))
        self._tables, self._rows, self._bytes = [], 0, 0


class ParquetWriter:
    """Part files in a folder, each complete; at the end they become one file."""

    def __init__(
        self, folder: Path, parts: int, new: Mapping[str, Any], schema: Any | None, columns: Sequence[str]
    ) -> None:
        """Go on after `parts` whole parts. `schema` is that of a parquet input, else that of the first rows is taken."""
        self._arrow, self._parquet = pyarrow(), pyarrow("pyarrow.parquet")
        self._folder, self._parts, self._new, self._columns = folder, parts, new, list(columns)
        self._input, self._schema = schema, None
        self._writer: _GroupWriter | None = None
        for part in self._folder.glob("*.parquet"):
            if int(part.stem) >= parts:
                part.unlink()
        if parts:
            self._schema = self._parquet.read_schema(self._part(0))

    def write(self, rows: Sequence[Written]) -> Refused:
        """Append rows; refuse those whose values are not of their columns' types."""
        if not rows:
            return {}
        if self._schema is None:
            self._schema = self._schema_of(rows)
        refused = Refused()
        tables = [self._table(list(group), refused) for group in _by_batch(rows)]
        if self._writer is None:
            self._writer = _GroupWriter(self._part(self._parts), self._schema)
        for table in tables:
            self._writer.write(table)
        return refused

    def sync(self) -> int:
        """Complete a part; return the number of parts."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            sync(self._part(self._parts))
            sync(self._folder)
            self._parts += 1
        return self._parts

    def finish(self) -> Path:
        """Return the whole output: the only part, or a file of all. The parts stay as they are."""
        if not self._parts:  # no row at all
            self._schema = self._schema or self._schema_of([])
            self._parquet.write_table(self._schema.empty_table(), self._part(0))
        if self._parts <= 1:
            return self._part(0)
        joined = self._folder / "joined"
        writer = _GroupWriter(joined, self._schema)
        for number in range(self._parts):
            with self._parquet.ParquetFile(self._part(number), pre_buffer=False) as part:
                for batch in part.iter_batches(READ_ROWS):
                    writer.write(self._arrow.Table.from_batches([batch]))
        writer.close()
        sync(joined)
        return joined

    def close(self) -> None:
        """Leave the part that is being written."""
        if self._writer is not None:
            self._writer.close()

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:06d}.parquet"

    def _schema_of(self, rows: Sequence[Written]) -> Any:
        """Return the columns of the input and the new ones; of json the input's are those of the first rows."""
        arrow = self._arrow
        schema = self._input
        if schema is None:
            found = arrow.Table.from_pylist([dict(row.values) for row, _ in rows if row.values]).schema
            types = {field.name: field.type for field in found}
            # A column without a value so far is taken for text.
            schema = arrow.schema(
                [
                    (
                        name,
                        arrow.string() if arrow.types.is_null(types.get(name, arrow.null())) else types[name],
                    )
                    for name in self._columns
                ]
            )
        vectors = {
            name: len(new[name])
            for name, kind in self._new.items()
            if kind is np.float32
            for _, new in rows
            if new.get(name) is not None
        }
        for name, kind in self._new.items():
            schema = schema.append(arrow.field(name, self._type(kind, vectors.get(name))))
        return schema

    def _type(self, kind: Any, width: int | None = None) -> Any:
        """Return the arrow type of a column of BulkTask."""
        arrow = self._arrow
        if isinstance(kind, list):
            return arrow.list_(self._type(kind[0]))
        if isinstance(kind, Mapping):
            return arrow.struct([(name, self._type(each)) for name, each in kind.items()])
        if kind is np.float32:
            return arrow.list_(arrow.float32(), width if width is not None else -1)
        return {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}[kind]

    def _table(self, rows: Sequence[tuple[int, Written]], refused: Refused) -> Any:
        """Return the rows as a table; those that do not fit are left out and refused."""
        fitting, table = list(rows), None
        try:
            table = self._made([each for _, each in fitting])
        except (self._arrow.ArrowException, TypeError, ValueError, OverflowError):
            fitting = []
            for index, each in rows:
                try:
                    self._made([each])
                    fitting.append((index, each))
                except (self._arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                    refused[index] = f"does not fit the columns' types in parquet: {error}"
            table = self._made([each for _, each in fitting])
        return table

    def _made(self, rows: Sequence[Written]) -> Any:
        arrow = self._arrow
        assert self._schema is not None
        split = len(self._schema) - len(self._new)
        if rows and rows[0][0].place is not None:
            batch = rows[0][0].place[0].records
            old = batch.take(arrow.array([row.place[1] for row, _ in rows if row.place is not None])).columns
        else:
            old = [self._old_column(self._schema.field(n), rows) for n in range(split)]
            if unknown := next((n for row, _ in rows for n in row.values if n not in self._columns), None):
                raise ValueError(f"a column {unknown!r}, which the first rows have not")
        new = [
            self._new_column(self._schema.field(n), [each.get(self._schema.names[n]) for _, each in rows])
            for n in range(split, len(self._schema))
        ]
        return arrow.Table.from_arrays([*old, *new], schema=self._schema)

    def _old_column(self, field: Any, rows: Sequence[Written]) -> Any:
        values = [row.values.get(field.name) for row, _ in rows]
        if self._arrow.types.is_string(field.type):
            values = [v if v is None or isinstance(v, str) else to_json(v).decode() for v in values]
        return self._arrow.array(values, field.type)

    def _new_column(self, field: Any, values: Sequence[Any]) -> Any:
        arrow = self._arrow
        if arrow.types.is_fixed_size_list(field.type) and values and all(v is not None for v in values):
            flat = arrow.array(np.concatenate(values))
            return arrow.FixedSizeListArray.from_arrays(flat, field.type.list_size)
        return arrow.array(values, field.type)


def _by_batch(rows: Sequence[Written]) -> Iterator[Iterator[tuple[int, Written]]]:
    """Group neighbours of one record batch, each with its index."""
    groups = groupby(enumerate(rows), key=lambda each: id(each[1][0].place[0]) if each[1][0].place else 0)
    return (group for _, group in groups)
