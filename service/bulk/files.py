"""The files of a run: the input, the output, the bad rows, and the record of what is safe."""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bert.data.tables import Dialect
from bert.errors import ConfigError
from service.bulk.parquet import ParquetRows, pyarrow, values_of
from service.bulk.parquet_writer import ParquetWriter
from service.bulk.progress import PartialFolder, Progress, difference, identity_of
from service.bulk.rows import STREAM, format_of
from service.bulk.settings import PredictSettings
from service.bulk.text_rows import SeparatedRows, open_text
from service.bulk.text_writers import AppendedFile, JsonLinesWriter, SeparatedWriter

RECORD_S, RECORD_PARQUET_S = 2.0, 15.0
"""Seconds between records of progress: the most that a kill costs. Each record of parquet makes a part file."""


class Files:
    """Input and outputs, as the settings name them."""

    def __init__(self, settings: PredictSettings, input_name: str) -> None:
        """Check names, formats and what is there already. Raises ConfigError."""
        self._settings, self.input_name = settings, input_name
        self._input_format, self._reads_gz = format_of(input_name, settings.input_format, "--input-format")
        self._output_format, self._writes_gz = format_of(
            settings.out, settings.output_format, "--output-format"
        )
        self._is_stream = settings.out == STREAM
        for name, kind in ((input_name, self._input_format), (settings.out, self._output_format)):
            if kind == "parquet":
                pyarrow()
                if name == STREAM or _is_special(Path(name)):
                    raise ConfigError("parquet cannot come from or go to a pipe: name a file, or take jsonl")
        out = Path(settings.out)
        self.bad_name = (
            settings.bad if self._is_stream else settings.bad or out.with_name(f"{out.name}.bad.jsonl")
        )
        """File of the bad rows at the end; None where they are only told."""
        self._partial = None if self._is_stream else PartialFolder(out, self.bad_name or out)
        self._check_targets(out)
        self.progress = Progress({})
        self.is_open = self.has_record = False
        """The outputs are open; there is a record of progress, from which the same command goes on."""
        self.writer: Any = None
        self._bad: AppendedFile | None = None
        self._recorded = time.monotonic()
        self._lock: int | None = None

    @property
    def bad_now(self) -> Path | None:
        """File of the bad rows while the run goes on."""
        return self._partial.bad_rows if self._partial else self.bad_name

    def _check_targets(self, out: Path) -> None:
        """Raise ConfigError for an output that must not or cannot be written."""
        targets = {} if self._partial is None else {"--out": out}
        if self.bad_name is not None:
            targets["--bad"] = self.bad_name
        for setting, target in targets.items():
            self._check_target(setting, target)
        if len(targets) == 2 and _is_same(*targets.values()):
            raise ConfigError(f"--bad {self.bad_name} is the output itself")
        resumes = self._partial is not None and not self._settings.restart and self._partial.has_record
        for setting, target in targets.items():
            is_named = setting == "--out" or self._settings.bad is not None
            if is_named and target.exists() and not self._settings.overwrite and not resumes:
                raise ConfigError(
                    f"{target} is there already: --overwrite replaces it, or name another with {setting}"
                )

    def _check_target(self, setting: str, target: Path) -> None:
        """Raise ConfigError for a file that is the input, is none, or has no folder that can be written."""
        if target.is_dir():
            raise ConfigError(f"{setting} {target} is a folder: name a file")
        if _is_special(target):
            raise ConfigError(f"{setting} {target} is no file: name one, or take --out - for standard output")
        if not target.parent.is_dir():
            raise ConfigError(f"{setting} {target}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"{setting} {target}: the folder {target.parent} cannot be written")
        if self.input_name != STREAM and _is_same(target, Path(self.input_name)):
            raise ConfigError(f"{setting} {target} is the input itself")
        if self._partial is not None and self._partial.folder.resolve() in target.resolve().parents:
            raise ConfigError(f"{setting} {target} is in the folder of this run: name another")

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """Open the input. Raises DataError."""
        reader: Any
        if self._input_format == "parquet":
            reader = ParquetRows(self.input_name)
        else:
            needed = tuple(self._settings.columns.values())
            reader = open_text(self.input_name, self._input_format, needed, is_compressed=self._reads_gz)
        self._reader = reader
        try:
            yield reader
        finally:
            reader.close()

    def open(self, run: Mapping[str, Any], columns: Sequence[str], new: Mapping[str, Any]) -> Progress:
        """Open the outputs where an earlier run of the same kind left them, else anew; return what is done.

        Raises ConfigError if the earlier run was another, and OSError.
        """
        if self._partial is None:
            self._bad = AppendedFile(self.bad_name, 0, is_compressed=False) if self.bad_name else None
            self.writer = self._writer(None, columns, new)
            self.is_open = True
            return self.progress
        run = {"input": dict(identity_of(self.input_name)), "bad": str(self._partial.bad.resolve()), **run}
        self._partial.folder.mkdir(exist_ok=True)
        self._lock_folder(self._partial.folder)
        found = None if self._settings.restart else self._partial.found()
        if found is not None and (other := difference(run, found.run)):
            raise ConfigError(
                f"{self._partial.folder} is of a run with another {other}: --restart begins again, or name another "
                "output with --out"
            )
        if found is None:
            self._partial.clear()
        self.progress = found or Progress(run, columns=list(columns))
        self.has_record = found is not None
        if self.progress.is_complete:
            # A kill between two renames: a file that has its place must not be made anew.
            self.writer = (
                self._writer(self._partial, self.progress.columns, new) if self._partial.has_output else None
            )
            self.is_open = True
            return self.progress
        self._bad = AppendedFile(self._partial.bad_rows, self.progress.bad_bytes, is_compressed=False)
        self.writer = self._writer(self._partial, self.progress.columns, new)
        self.is_open = True
        if found is None:
            self.record()
        return self.progress

    def write_bad(self, lines: bytes) -> None:
        """Append lines to the file of bad rows. Raises OSError."""
        if self._bad is not None:
            self._bad.write(lines)

    def record_sometimes(self) -> None:
        """Record the progress if the last time is long enough ago. Raises OSError."""
        every_s = RECORD_PARQUET_S if self._output_format == "parquet" else RECORD_S
        if time.monotonic() - self._recorded >= every_s:
            self.record()

    def record(self) -> None:
        """Sync the outputs, and then write down how much of them is safe. Raises OSError."""
        self.progress.output = self.writer.sync()
        self.progress.bad_bytes = self._bad.sync() if self._bad is not None else 0
        if self._partial is not None:
            self._partial.record(self.progress)
            self.has_record = True
        self._recorded = time.monotonic()

    def complete(self) -> None:
        """Give the files their names. Raises OSError.

        The lock is held until then: a second run would write the same files.
        """
        if not self.progress.is_complete:
            self.progress.is_complete = True
            self.record()
        self._close_outputs()
        output = self.writer.finish() if self.writer is not None else None
        if self._partial is not None:
            self._partial.put_in_place(output, self.progress.bad)
        self.close()

    def close(self) -> None:
        """Close the outputs and release the lock; what is not on the disk yet may be lost."""
        self._close_outputs()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_outputs(self) -> None:
        for file in (self.writer, self._bad):
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _writer(self, partial: PartialFolder | None, columns: Sequence[str], new: Mapping[str, Any]) -> Any:
        """Return the output's writer, which goes on where the progress says."""
        kept = self.progress.output
        if self._output_format == "parquet":
            assert partial is not None
            schema = getattr(self._reader, "schema", None)
            return ParquetWriter(partial.parts, kept, new, schema, columns)
        file = AppendedFile(partial.rows if partial else None, kept, is_compressed=self._writes_gz)
        if self._output_format == "jsonl":
            return JsonLinesWriter(file, values_of)
        dialect = Dialect(",") if self._output_format == "csv" else Dialect("\t", quoted=False)
        if isinstance(self._reader, SeparatedRows) and self._input_format == self._output_format:
            separator = self._reader.dialect.separator
            dialect = Dialect(separator) if separator != dialect.separator else dialect
        return SeparatedWriter(file, columns, list(new), dialect, values_of, is_new=kept == 0)

    def _lock_folder(self, folder: Path) -> None:
        """Refuse to write what another process writes. Raises ConfigError."""
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {folder}: wait for it, or name another --out"
            ) from None
        except OSError:
            pass  # this disk knows no locks


def _is_special(path: Path) -> bool:
    """Tell whether a path is a pipe, a device or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _is_same(one: Path, other: Path) -> bool:
    """Tell whether two paths are one file, also by links."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
