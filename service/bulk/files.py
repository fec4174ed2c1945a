"""The files of a run: the input, the output, and the bad rows; what may be read and written, and how it is opened."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bert.data.tables import Dialect
from bert.errors import ConfigError
from service.bulk.input import STREAM, InputRow, format_of
from service.bulk.journal import Journal, Progress, identity_of, synced
from service.bulk.output import Output, SeparatedOutput, convert
from service.bulk.settings import PredictSettings
from service.bulk.text_input import SeparatedRows, open_text

RECORD_S = 2.0
"""Seconds between records of progress: the most that a kill costs."""


class Files:
    """Input and outputs, as the settings name them."""

    output: Output

    def __init__(self, settings: PredictSettings, input_name: str) -> None:
        """Check names, formats and what is there already. Raises ConfigError."""
        self._settings, self.input_name = settings, input_name
        self._input_format, self._reads_gz = format_of(input_name, settings.input_format, "--input-format")
        self._output_format, self._writes_gz = format_of(
            settings.out, settings.output_format, "--output-format"
        )
        for name, kind in ((input_name, self._input_format), (settings.out, self._output_format)):
            if kind == "parquet":
                _check_pyarrow()
                if name == STREAM or _is_special(Path(name)):
                    raise ConfigError("parquet cannot come from or go to a pipe: name a file, or take jsonl")
        out, is_stream = Path(settings.out), settings.out == STREAM
        self.bad_name = settings.bad if is_stream else settings.bad or out.with_name(f"{out.name}.bad.jsonl")
        """File of the bad rows at the end; None where they are only told."""
        self._journal = None if is_stream else Journal(out, self.bad_name or out)
        self._check_targets(out)
        self.progress = Progress({})
        self.is_open = False
        """The outputs are open."""
        self._bad: IO[bytes] | None = None
        """Bad rows, where the others go to standard output."""
        self._recorded = time.monotonic()

    @property
    def has_record(self) -> bool:
        """Tell whether there is a record of progress, from which the same command goes on."""
        return self._journal is not None and self._journal.has_record

    @property
    def bad_now(self) -> Path | None:
        """File of the bad rows while the run goes on."""
        return self._journal.bad_rows if self._journal else self.bad_name

    def _check_targets(self, out: Path) -> None:
        """Raise ConfigError for an output that must not or cannot be written."""
        targets = {} if self._journal is None else {"--out": out}
        if self.bad_name is not None:
            targets["--bad"] = self.bad_name
        for setting, target in targets.items():
            self._check_target(setting, target)
        if len(targets) == 2 and _is_same(*targets.values()):
            raise ConfigError(f"--bad {self.bad_name} is the output itself")
        resumes = self.has_record and not self._settings.restart
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
        if self._journal is not None and self._journal.folder.resolve() in target.resolve().parents:
            raise ConfigError(f"{setting} {target} is in the folder of this run: name another")

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """Open the input. Raises DataError."""
        reader: Any
        if self._input_format == "parquet":
            from service.bulk.parquet_input import ParquetRows

            reader = ParquetRows(self.input_name)
        else:
            needed = tuple(self._settings.columns.values())
            reader = open_text(self.input_name, self._input_format, needed, is_compressed=self._reads_gz)
        self._reader = reader
        try:
            yield reader
        finally:
            reader.close()

    def open(
        self,
        run: Mapping[str, Any],
        columns: Sequence[str],
        first: Sequence[InputRow],
        new: Mapping[str, Any],
    ) -> Progress:
        """Open the outputs where an earlier run of the same kind left them, else anew; return what is done.

        Of text, the `first` rows tell the types for parquet. Raises ConfigError if the earlier run was another, and OSError.
        """
        if self._journal is not None:
            run = {"input": dict(identity_of(self.input_name)), **run}
            self.progress = self._journal.open(run, columns, restart=self._settings.restart)
        elif self.bad_name is not None:
            self._bad = self.bad_name.open("wb")
        self.output = self._output(self.progress.columns or columns, first, new)
        if self._journal is None:
            self.output.begin(sys.stdout.buffer)
        elif not self.has_record:
            self.record()
        self.is_open = True
        return self.progress

    def write(self, rows: Iterable[bytes], bad: Iterable[bytes]) -> None:
        """Append lines of finished and of bad rows. Raises OSError."""
        if self._journal is not None:
            self._journal.append(b"".join(rows), b"".join(bad))
            return
        self.output.write(rows)
        sys.stdout.buffer.flush()
        if self._bad is not None:
            self._bad.write(b"".join(bad))

    def record_if_due(self) -> None:
        """Record the progress if the last time is long enough ago. Raises OSError."""
        if time.monotonic() - self._recorded >= RECORD_S:
            self.record()

    def record(self) -> None:
        """Bring everything to the disk, and write down how much of it is safe. Raises OSError."""
        if self._journal is not None:
            self._journal.record(self.progress)
        else:
            sys.stdout.buffer.flush()
            if self._bad is not None:
                synced(self._bad)
        self._recorded = time.monotonic()

    def complete(self, stopped: Callable[[], bool]) -> bool:
        """Convert the finished rows, and give the files their names; False after a stop.

        Raises OSError, and DataError for an input that cannot be read again.
        """
        if not self.progress.is_complete:
            self.progress.is_complete = True
            self.record()
        if self._journal is not None:
            output = self._journal.rows
            is_other = self._output_format != "jsonl" or self._writes_gz
            if is_other and output.exists():
                target, packs = self._journal.converted, self._writes_gz
                if not convert(output, self.output, target, stopped, is_compressed=packs):
                    return False
                output = target
            self._journal.put_in_place(output, self.progress.bad)
        self.close()
        return True

    def close(self) -> None:
        """Close the outputs and release the lock; what is not on the disk yet may be lost."""
        if self._journal is not None:
            self._journal.close()
        if self._bad is not None:
            with suppress(OSError):
                self._bad.close()

    def _output(self, columns: Sequence[str], first: Sequence[InputRow], new: Mapping[str, Any]) -> Output:
        """Return the output in its format. Raises ConfigError for a column's name that it cannot hold."""
        if self._output_format == "jsonl":
            return Output()
        if self._output_format == "parquet":
            from service.bulk.parquet_output import ParquetOutput

            return ParquetOutput(self._reader, columns, first, new)
        dialect = Dialect(",") if self._output_format == "csv" else Dialect("\t", quoted=False)
        if isinstance(self._reader, SeparatedRows) and self._input_format == self._output_format:
            separator = self._reader.dialect.separator
            dialect = Dialect(separator) if separator != dialect.separator else dialect
        return SeparatedOutput(columns, new, dialect)


def _check_pyarrow() -> None:
    """Raise ConfigError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"parquet needs pyarrow ({error}): pip install '.[bulk]' in a clone of the repository, or use jsonl or csv"
        ) from None


def _is_special(path: Path) -> bool:
    """Tell whether a path is a pipe, a device or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _is_same(one: Path, other: Path) -> bool:
    """Tell whether two paths are one file, also by links."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
