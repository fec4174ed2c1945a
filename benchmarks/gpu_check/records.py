"""Results of a section of the check: rows of tables, notes and failed steps, each written at once.

A section that is killed keeps what it had written until then.
"""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAILED, TIMED_OUT, SKIPPED = "ok", "failed", "out of time", "skipped"
Row = dict[str, Any]


class Recorder:
    """Writer of a section's findings to a file, one line of JSON each."""

    def __init__(self, file: Path) -> None:
        """Begin the file."""
        self._file = file
        file.write_text("", encoding="utf-8")

    def row(self, table: str, **values: Any) -> None:
        """Add a row to a table; tables of a section may have any names."""
        print(f"{table}: {values}", flush=True)
        self._write({"table": table, "row": values})

    def note(self, text: str) -> None:
        """Add a sentence."""
        print(text, flush=True)
        self._write({"note": text})

    def skip(self, reason: str) -> None:
        """Say that the section, or the rest of it, is left out."""
        print(f"skipped: {reason}", flush=True)
        self._write({"skip": reason})

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run a part of a section; record its failure and go on after it."""
        print(f"-- {name}", flush=True)
        try:
            yield
        except ModuleNotFoundError as error:
            self.skip(f"{name}: {error.name} is not installed")
        except (Exception, SystemExit) as error:  # whatever it is, the next step may work
            traceback.print_exc()
            self.error(name, error)

    def error(self, step: str, error: BaseException) -> None:
        """Record what a step failed with."""
        said = " ".join(str(error).split())[:1000]
        self._write({"step": step, "error": f"{type(error).__name__}: {said}"})

    def _write(self, content: Row) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(content, default=_plain) + "\n")


@dataclass
class Findings:
    """Results of one section."""

    name: str
    title: str
    status: str = OK
    seconds: float = 0.0
    error: str = ""
    """Reason why the section ended early; empty where it did not."""
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Failed steps, a line each."""

    def to_dict(self) -> Row:
        """Return the findings as JSON holds them."""
        return asdict(self)

    def value(self, table: str, name: str) -> Any:
        """Return the first value of a column; None where there is none."""
        return next((row[name] for row in self.tables.get(table, []) if name in row), None)


def read_into(findings: Findings, file: Path) -> None:
    """Add what a section wrote; a line that a kill has cut is left out."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "table" in found:
            findings.tables.setdefault(found["table"], []).append(found["row"])
        elif "error" in found:
            findings.errors.append(f"{found['step']}: {found['error']}")
        elif "skip" in found:
            findings.skipped.append(found["skip"])
        else:
            findings.notes.append(found["note"])


def _plain(value: Any) -> Any:
    """Return a number of numpy or torch as Python's own, and anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)
