"""Files for bert-predict, and the command as users run it."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "service.bulk.command"]
WORDS = [
    "the",
    "film",
    "was",
    "warm",
    "funny",
    "dull",
    "angela",
    "merkel",
    "met",
    "in",
    "munich",
    "and",
    "not",
]


def texts(count: int) -> list[str]:
    """Return texts of 1 to 20 words, no two neighbours alike."""
    return [
        " ".join(WORDS[(n * 7 + k * k) % len(WORDS)] for k in range(1 + n * 11 % 20)) for n in range(count)
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows in the format of the file's ending; values with a structure are JSON in csv."""
    rows = list(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(list(rows[0]))
            writer.writerows(
                [v if isinstance(v, str) else json.dumps(v) for v in row.values()] for row in rows
            )
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read rows of a file by its ending."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def run(
    *arguments: object, stdin: bytes | None = None, program: list[str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run bert-predict to its end."""
    return subprocess.run(
        [*(program or COMMAND), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ},
        timeout=120,
    )
