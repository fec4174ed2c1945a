"""How far a run has come, on the disk: the folder OUT.partial, from which a killed run goes on.

    OUT.partial/progress.json     what is safe: rows, sizes of the files; and what run it is
    OUT.partial/rows              output so far, as it will be; of parquet the folder `parts`
    OUT.partial/bad.jsonl         bad rows so far

What lies behind the recorded sizes was written by a run that was killed, and is cut off.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from bert.files import atomic_file, atomic_write, sync
from service.bulk.rows import STREAM

HEAD_BYTES = 2**20
"""Bytes at the beginning of an input by which it is known again."""


@dataclass(slots=True)
class Progress:
    """What is safe on the disk."""

    run: Mapping[str, Any]
    """Input, model and settings. A run with others does not go on from here."""
    rows: int = 0
    """Rows of the input that are done, bad ones included."""
    bad: int = 0
    """Bad rows among them."""
    output: int = 0
    """Bytes of the output; of parquet its parts."""
    bad_bytes: int = 0
    seconds: float = 0.0
    """Time that it took so far."""
    columns: list[str] = field(default_factory=list)
    """Columns of the input, as its first rows have them."""
    is_complete: bool = False
    """All rows are done, and only the renaming is left."""


class PartialFolder:
    """The folder of a run beside its output."""

    def __init__(self, out: Path, bad: Path) -> None:
        """Name the folder; nothing is made yet."""
        self.out, self.bad = out, bad
        self.folder = out.with_name(f"{out.name}.partial")
        self.rows, self.parts = self.folder / "rows", self.folder / "parts"
        self.bad_rows = self.folder / "bad.jsonl"
        self._file = self.folder / "progress.json"

    def found(self) -> Progress | None:
        """Return what an earlier run left; None if there was none. Raises ConfigError for a file that is no progress."""
        try:
            return Progress(**json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self._file} cannot be read ({error}): begin again with --restart") from None

    def clear(self) -> None:
        """Empty the folder, whose lock stays. Raises OSError."""
        self._file.unlink(missing_ok=True)  # first: without it the rest is nothing to go on with
        for file in (self.rows, self.bad_rows):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)
        self.parts.mkdir()

    def record(self, progress: Progress) -> None:
        """Record what is safe by now. Raises OSError."""
        atomic_write(self._file, json.dumps(asdict(progress), indent=1))
        sync(self.folder)

    @property
    def has_record(self) -> bool:
        """Tell whether an earlier run left something to go on with."""
        return self._file.exists()

    @property
    def has_output(self) -> bool:
        """Tell whether the output is still here and not in its place."""
        return self.rows.exists() or any(self.parts.glob("*"))

    def put_in_place(self, output: Path | None, bad_rows: int) -> None:
        """Give the files their names; None is an output that has its name. Raises OSError.

        After a kill it is called again, and no step does harm.
        """
        if bad_rows:
            _move(self.bad_rows, self.bad)
        else:
            self.bad.unlink(missing_ok=True)  # of an earlier run whose output is replaced
        if output is not None:
            _move(output, self.out)
        sync(self.out.parent)
        shutil.rmtree(self.folder, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    if not source.exists():
        return
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with source.open("rb") as content, atomic_file(target) as file:
            shutil.copyfileobj(content, file)
        source.unlink()


def identity_of(name: str) -> Mapping[str, Any]:
    """Return what tells an input from another, or from itself before a change. Raises OSError."""
    path = Path(name)
    if name == STREAM or not path.is_file():  # bytes read from a pipe would be missing from its rows
        return {"path": STREAM}
    stat = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
    return {"path": str(path.resolve()), "bytes": stat.st_size, "changed_ns": stat.st_mtime_ns, "head": head}


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Name what a run has otherwise than the one before; empty if nothing."""
    names = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    return ", ".join(
        f"{name} (now {json.dumps(now.get(name))}, then {json.dumps(before.get(name))})"
        if not isinstance(now.get(name), Mapping)
        else name
        for name in names
    )
