"""The finished rows of a run on the disk: the folder OUT.partial, from which a killed run goes on.

    OUT.partial/progress.json     what run it is, and how much of the other files is safe
    OUT.partial/rows.jsonl        finished rows, a JSON line each
    OUT.partial/bad.jsonl         bad rows so far
    OUT.partial/output            the rows in another format than JSON lines, while they are converted at the end

What lies behind the recorded sizes was written by a run that was killed, and is cut off.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from bert.errors import ConfigError
from bert.files import atomic_file, atomic_write, sync
from service.bulk.input import STREAM

HEAD_BYTES = 2**20
"""Bytes at the beginning of an input by which it is known again."""


@dataclass(slots=True)
class Progress:
    """Rows that are safe on the disk, and the run that they are of."""

    run: Mapping[str, Any]
    """Input, model and settings. A run with others does not go on from here."""
    rows: int = 0
    """Rows of the input that are done, bad ones included."""
    bad: int = 0
    """Bad rows among them."""
    rows_bytes: int = 0
    bad_bytes: int = 0
    """Sizes of the two files."""
    seconds: float = 0.0
    """Time that it took so far."""
    columns: list[str] = field(default_factory=list)
    """Columns of the input, as its first rows have them."""
    is_complete: bool = False
    """All rows are done: only the conversion and the renaming are left."""


class Journal:
    """The folder of a run beside its output."""

    def __init__(self, out: Path, bad: Path) -> None:
        """Name the folder; nothing is made yet."""
        self.out, self.bad = out, bad
        self.folder = out.with_name(f"{out.name}.partial")
        self.rows, self.bad_rows = self.folder / "rows.jsonl", self.folder / "bad.jsonl"
        self.converted = self.folder / "output"
        self._file = self.folder / "progress.json"
        self._lock: int | None = None
        self._open = list[IO[bytes]]()

    @property
    def has_record(self) -> bool:
        """Tell whether an earlier run left something to go on with."""
        return self._file.exists()

    def open(self, run: Mapping[str, Any], columns: Sequence[str], *, restart: bool) -> Progress:
        """Lock the folder, and return how far an earlier run came.

        Raises ConfigError if it was another run or is going on, and OSError.
        """
        run = {**run, "bad": str(self.bad.resolve())}
        self.folder.mkdir(exist_ok=True)
        self._lock_folder()
        found = None if restart else self._found()
        if found is not None and (other := difference(run, found.run)):
            raise ConfigError(
                f"{self.folder} is of a run with another {other}: --restart begins again, or name another "
                "output with --out"
            )
        if found is None:
            self._file.unlink(missing_ok=True)  # first: without it the rest is nothing to go on with
        progress = found or Progress(run, columns=list(columns))
        if not progress.is_complete:
            sizes = {self.rows: progress.rows_bytes, self.bad_rows: progress.bad_bytes}
            self._open = [open_at(path, size) for path, size in sizes.items()]
        return progress

    def append(self, rows: bytes, bad: bytes) -> None:
        """Append lines of finished and of bad rows. Raises OSError."""
        for file, lines in zip(self._open, (rows, bad), strict=True):
            file.write(lines)

    def record(self, progress: Progress) -> None:
        """Sync both files, and then write down how much of them is safe. Raises OSError."""
        progress.rows_bytes, progress.bad_bytes = map(synced, self._open)
        atomic_write(self._file, json.dumps(asdict(progress), indent=1))
        sync(self.folder)

    def put_in_place(self, output: Path, bad_rows: int) -> None:
        """Give the files their names. Raises OSError.

        The lock is held until all have them: a second run would write the same files. After a kill this is called again;
        a file that is no longer in the folder was moved before.
        """
        if bad_rows:
            _move(self.bad_rows, self.bad)
        else:
            self.bad.unlink(missing_ok=True)  # of an earlier run whose output is replaced
        _move(output, self.out)
        sync(self.out.parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in self._open:
            with suppress(OSError):
                file.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _found(self) -> Progress | None:
        """Return what an earlier run left; None if there was none. Raises ConfigError for a damaged file."""
        try:
            return Progress(**json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self._file} cannot be read ({error}): begin again with --restart") from None

    def _lock_folder(self) -> None:
        """Refuse to write what another process writes. Raises ConfigError."""
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {self.folder}: wait for it, or name another --out"
            ) from None
        except OSError:
            pass  # this disk knows no locks


def open_at(path: Path, kept_bytes: int) -> IO[bytes]:
    """Open a file that grows, and cut it to `kept_bytes`. Raises OSError, and ConfigError for one that is shorter."""
    if kept_bytes and (not path.exists() or path.stat().st_size < kept_bytes):
        raise ConfigError(f"{path} is shorter than recorded: begin again with --restart")
    file = path.open("ab")
    file.truncate(kept_bytes)
    return file


def synced(file: IO[bytes]) -> int:
    """Bring a file to the disk, and return its size in bytes. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


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
    """Name the settings that differ from those of the earlier run; empty if none does."""
    names = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    return ", ".join(
        f"{name} (now {json.dumps(now.get(name))}, then {json.dumps(before.get(name))})"
        if not isinstance(now.get(name), Mapping)
        else name
        for name in names
    )
