"""Tables with named columns: csv, tsv, json lines, and a json list of objects."""

import csv
import io
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.data.examples import TextExample
from bert.data.files import (
    COMPRESSED,
    Place,
    Problems,
    ending,
    first_line,
    json_lines,
    parse_json,
    read_lines,
    read_text,
)
from bert.data.rows import TextColumns, text_examples
from bert.errors import DataError

logger = logging.getLogger(__name__)
Row = tuple[Place, Mapping[str, object]]
TABLES = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
"""Endings, in lower case, and the format that they are of."""


def read_table(path: str | Path, columns: TextColumns) -> list[TextExample]:
    """Read a .csv, .tsv, .txt (as tsv), .jsonl or .json file.

    In csv, quotes enclose a field, in which separators and line ends are then text. In tsv they are letters like any
    other, as in GLUE. Raises DataError with all rows that cannot be read: wrong number of columns, empty text,
    unknown label, ...
    """
    problems = Problems(path)
    return text_examples(path, read_rows(path, columns.named, problems), columns, problems)


def read_rows(path: str | Path, needed: tuple[str, ...], problems: Problems) -> Iterator[Row]:
    """Yield (line, row) of a table, of a json list ("row 3", row); rows that are broken go to `problems` instead.

    Raises DataError for an unknown kind of file, or one that does not have the `needed` columns.
    """
    suffix = ending(path)
    if suffix in (".jsonl", ".ndjson"):
        return _objects(json_lines(path, problems), needed, problems)
    if suffix == ".json":
        return _objects(_json_list(path), needed, problems)
    if suffix in DIALECTS:
        return _separated(path, needed, problems)
    named = f"is a {suffix} file" if suffix else "has no ending that names its format"
    raise DataError(
        path,
        None,
        f"{named}; known are .csv, .tsv, .jsonl and .json, alone or before {', '.join(COMPRESSED)}",
    )


def column_names(path: str | Path, needed: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the names of a table's columns; of json, the fields that any object has.

    `needed` columns tell what separates them. Raises DataError for an unknown kind of file; what is wrong with its
    rows, `read_rows` says.
    """
    if ending(path) in DIALECTS:
        return frozenset(header_of(path, needed)[1])
    rows = read_rows(path, (), Problems(path))
    return frozenset(name for _, row in rows for name in row)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Separator of the columns, and whether fields may be quoted."""

    separator: str
    quoted: bool = True


_COMMA, _OTHERS = Dialect(","), (Dialect(";"), Dialect("|"))
_TSV = (Dialect("\t", quoted=False), Dialect("\t"), _COMMA, *_OTHERS)
DIALECTS = {".csv": (_COMMA, Dialect("\t"), *_OTHERS), ".tsv": _TSV, ".tab": _TSV, ".txt": _TSV}
"""File ending → its possible separators, the likeliest first."""


def header_of(path: str | Path, needed: tuple[str, ...]) -> tuple[Dialect, list[str]]:
    """Return how the columns of a table are separated, and their names; see `dialect_of`."""
    return dialect_of(first_line(path), ending(path), needed)


def dialect_of(line: str, ending: str, needed: tuple[str, ...]) -> tuple[Dialect, list[str]]:
    """Return how the columns of a table with this first line are separated, and their names.

    That is the first dialect of the file's ending by which the header has all `needed` columns; where none has them,
    the one that finds the most columns. The rows are not asked: a text may hold any separator.
    """
    headers = [(dialect, _header(line, dialect)) for dialect in DIALECTS[ending]]
    fitting = (found for found in headers if needed and set(needed) <= set(found[1]))
    return next(fitting, None) or max(headers, key=lambda found: len(found[1]))


def _header(line: str, dialect: Dialect) -> list[str]:
    try:
        fields = (
            next(csv.reader([line], delimiter=dialect.separator))
            if dialect.quoted
            else line.split(dialect.separator)
        )
    except csv.Error:  # a line end that by this separator is in no quotes
        return []
    return [name.strip() for name in fields]


def _separated(path: str | Path, needed: tuple[str, ...], problems: Problems) -> Iterator[Row]:
    dialect, _ = header_of(path, needed)
    records = split_records(path, dialect.separator, dialect.quoted)
    names = [name.strip() for name in next(records)[1]]
    refuse_missing(path, needed, names, 1)
    yield from even_rows(names, records, problems)


def even_rows(
    names: Sequence[str],
    records: Iterator[tuple[int, list[str]]],
    problems: Problems,
    *,
    lenient: bool = False,
) -> Iterator[Row]:
    """Yield the rows of as many fields as there are `names`; others are problems, or `lenient` counted in a warning."""
    left_out = 0
    for line, fields in records:
        if len(fields) == len(names):
            yield line, dict(zip(names, fields, strict=True))
        elif lenient:
            left_out += 1
        else:
            problems.add(line, f"has {len(fields)} columns instead of {len(names)}")
    if left_out:
        logger.warning("%s: %d rows with a wrong number of columns were left out", problems.path, left_out)


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


def _json_list(path: str | Path) -> Iterator[tuple[str, object]]:
    rows = parse_json(read_text(path), path)
    if not isinstance(rows, list):
        raise DataError(path, None, "must be a json list of objects, or one object a line (.jsonl)")
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row


def _objects(
    rows: Iterable[tuple[Place, object]], needed: tuple[str, ...], problems: Problems
) -> Iterator[Row]:
    """Yield the rows that are objects with the `needed` fields; others are problems."""
    for place, row in rows:
        if not isinstance(row, dict):
            problems.add(place, f"is {str(row)[:60]!r} instead of an object")
        elif missing := [name for name in needed if name not in row]:
            problems.add(place, f"has no field {', '.join(map(repr, missing))}")
        else:
            yield place, row
