"""Tables with named columns: csv, tsv, json lines, and a json list of objects."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bert.errors import DataError
from training.data.examples import TextExample
from training.data.files import read_lines, read_text
from training.data.problems import Place, Problems
from training.data.rows import TextColumns, text_examples

Row = tuple[Place, Mapping[str, object]]
TABLES = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
"""Endings, in lower case, and the format that they are of."""


def read_table(
    path: str | Path, columns: TextColumns, header: bool = True, quoted: bool | None = None
) -> list[TextExample]:
    r"""Read a .csv, .tsv, .txt (as tsv), .jsonl or .json file.

    `quoted`: whether quotes enclose a field, in which separators and line ends are then text. By default so
    in csv, while in tsv quotes are letters like any other, as in GLUE. Without a `header` the columns are
    named "1", "2", ... Raises DataError with all rows that cannot be read: wrong number of columns, empty
    text, unknown label, ...
    """
    problems = Problems(path)
    return text_examples(path, read_rows(path, columns.named, problems, header, quoted), columns, problems)


def read_rows(
    path: str | Path,
    needed: tuple[str, ...],
    problems: Problems,
    header: bool = True,
    quoted: bool | None = None,
) -> Iterator[Row]:
    """Yield (line, row) of a table, of a json list ("row 3", row); rows that are broken go to `problems` instead.

    Raises DataError for an unknown kind of file, or one that does not have the `needed` columns.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(path, needed, problems)
    if suffix == ".json":
        return _json_list(path, needed, problems)
    if suffix == ".csv":
        return _separated(path, needed, problems, ",", header, quoted is not False)
    if suffix in (".tsv", ".tab", ".txt"):
        return _separated(path, needed, problems, "\t", header, quoted is True)
    raise DataError(path, None, f"is a {suffix or 'nameless'} file; known are .csv, .tsv, .jsonl and .json")


def column_names(path: str | Path) -> frozenset[str]:
    """Return the names of a table's columns; of json, the fields that any object has.

    Raises DataError for an unknown kind of file; what is wrong with its rows, `read_rows` says.
    """
    rows = read_rows(path, (), Problems(path))
    suffix = Path(path).suffix.lower()
    if suffix in TABLES and TABLES[suffix] != "jsonl":
        separator = "," if suffix == ".csv" else "\t"
        return frozenset(next(split_records(path, separator, suffix == ".csv"), (1, []))[1])
    return frozenset(name for _, row in rows for name in row)


def _separated(
    path: str | Path, needed: tuple[str, ...], problems: Problems, separator: str, header: bool, quoted: bool
) -> Iterator[Row]:
    records = split_records(path, separator, quoted)
    first_line, first = next(records)
    names = first if header else [str(number) for number in range(1, len(first) + 1)]
    refuse_missing(path, needed, names, 1)
    if not header:
        yield first_line, dict(zip(names, first, strict=True))
    for line, fields in records:
        if len(fields) == len(names):
            yield line, dict(zip(names, fields, strict=True))
        else:
            problems.add(line, f"has {len(fields)} columns instead of {len(names)}")


def split_records(path: str | Path, separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of each record that is not blank. Raises DataError for a broken quote."""
    if not quoted:
        for line, record in enumerate(read_lines(path), 1):
            if record.strip():
                yield line, record.split(separator)
        return
    csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is less than a long document
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(path, line, f"is not csv: {error} (is a quote not closed?)") from error


def refuse_missing(path: str | Path, needed: tuple[str, ...], names: list[str], line: int | None) -> None:
    """Raise DataError when a needed column is missing, or a column's name occurs twice."""
    missing = [name for name in needed if name not in names]
    if missing:
        have = ", ".join(map(repr, names))
        raise DataError(path, line, f"has no column {', '.join(map(repr, missing))}; its columns are {have}")
    twice = [name for name in needed if names.count(name) > 1]
    if twice:
        raise DataError(path, line, f"has two columns {twice[0]!r}")


def _json_lines(path: str | Path, needed: tuple[str, ...], problems: Problems) -> Iterator[Row]:
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            problems.add(line, f"is not json: {error.msg} at column {error.colno}")
            continue
        yield from _checked_object(line, row, needed, problems)


def _json_list(path: str | Path, needed: tuple[str, ...], problems: Problems) -> Iterator[Row]:
    try:
        rows = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(path, error.lineno, f"is not json: {error.msg}") from error
    if not isinstance(rows, list):
        raise DataError(path, None, "must be a json list of objects, or one object a line (.jsonl)")
    for number, row in enumerate(rows, 1):
        yield from _checked_object(f"row {number}", row, needed, problems)


def _checked_object(place: Place, row: object, needed: tuple[str, ...], problems: Problems) -> Iterator[Row]:
    if not isinstance(row, dict):
        problems.add(place, f"is {str(row)[:60]!r} instead of an object")
    elif missing := [name for name in needed if name not in row]:
        problems.add(place, f"has no field {', '.join(map(repr, missing))}")
    else:
        yield place, row
