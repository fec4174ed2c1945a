"""A file through a model: chunks of rows are read, predicted and written in order, with some of them in flight."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from itertools import chain, islice
from typing import Any

from bert.errors import BertError, ConfigError, DataError
from service.bulk.files import Files
from service.bulk.input import InputRow, values_of
from service.bulk.output import to_json
from service.bulk.predictor import Prediction, Predictor, characters, chunks
from service.bulk.report import Report, duration
from service.bulk.settings import PredictSettings

IN_FLIGHT = 3
"""Chunks that are in the engine or wait for it while others are read and written."""
FIRST_ROWS = 1024
"""First rows of json lines, whose keys are the columns."""
ERROR = "error"
"""Column of the reasons, with `keep_bad`."""
POLL_S = 0.2
SHOWN_BAD = 20
"""Most bad rows that are told on standard error where no file has them."""

Chunk = list[InputRow]
Done = tuple[Chunk, list[Prediction], float | None]
"""A chunk, the predictions of its good rows, and the share of the input up to its end."""
Stopped = Callable[[], bool]


class TooManyBadError(BertError):
    """More rows are bad than `max_bad` allows."""


class Run:
    """One run of `bert-predict`."""

    def __init__(
        self, settings: PredictSettings, predictor: Predictor, files: Files, report: Report, stopped: Stopped
    ) -> None:
        """Prepare a run; `stopped` tells that it is to end early."""
        self._settings, self._predictor, self._files = settings, predictor, files
        self._report, self._stopped = report, stopped
        self._new: dict[str, Any] = {}
        self._shown = 0

    def run(self) -> bool:
        """Predict all rows; False if it was stopped: the same command goes on. Raises BertError and OSError."""
        with self._files.reader() as reader:
            rows = reader.rows()
            first, columns = self._checked(rows, reader)
            types_from = next(chunks(first, size_of), [])
            progress = self._files.open(self._run_identity(), columns, types_from, self._new)
            if progress.is_complete:
                return self._files.complete(self._stopped)
            self._check_bad([])
            rows = islice(chain(first, rows), progress.rows, None)
            if progress.rows:
                self._report.say(f"resumed after {progress.rows:,} rows of an earlier run")
            self._report.begin(progress.rows, reader.share_read())
            before_s = progress.seconds
            for chunk, predictions, share in self._predicted(rows, reader.share_read):
                bad = self._write(chunk, predictions)
                progress.rows, progress.seconds = chunk[-1].number, before_s + self._report.seconds
                self._check_bad(bad)
                self._files.record_if_due()
                self._report.progress(progress.rows, progress.bad, share)
            is_stopped = self._stopped()
            if is_stopped:
                self._files.record()
            finished = not is_stopped and self._files.complete(self._stopped)
        if finished:
            speed = (progress.rows - self._report.rows_before) / max(self._report.seconds, 1e-9)
            self._report.say(
                f"{progress.rows:,} rows in {duration(progress.seconds)}, {speed:,.0f} rows/s, {progress.bad:,} bad"
            )
        return finished

    def _checked(self, rows: Iterator[InputRow], reader: Any) -> tuple[list[InputRow], list[str]]:
        """Return the first rows of JSON lines, and the columns; note the new ones. Raises DataError and ConfigError."""
        first, columns = list[InputRow](), reader.columns
        if columns is None:
            first = list(islice(rows, FIRST_ROWS))
            columns = list(dict.fromkeys(name for row in first for name in row.values))
            if first and all(row.fault for row in first):
                hint = "; jsonl has an object on each line (jq -c .)" if "not JSON" in first[0].fault else ""
                raise DataError(self._files.input_name, first[0].line, first[0].fault + hint)
        task = self._predictor.task_for(columns)
        needed = tuple(self._predictor.column_of(name) for name in task.fields)
        has_rows = reader.columns is not None or bool(first)
        if missing := [name for name in needed if name not in columns and has_rows]:
            have = ", ".join(map(repr, columns)) or "none"
            raise DataError(
                self._files.input_name,
                None,
                f"has no column {', '.join(map(repr, missing))}; its columns are {have}: name another with "
                f"--{task.fields[needed.index(missing[0])].replace('_', '-')}-column",
            )
        for name, column in self._settings.columns.items():
            if name not in task.fields and has_rows:
                option = f"--{name.replace('_', '-')}-column"
                found = "" if column in columns else f", and the input has no column {column!r}"
                raise ConfigError(f"{option}: the model reads {', '.join(task.fields)}{found}")
        reader.needed = needed
        prefix = self._settings.prefix
        self._new = {f"{prefix}{name}": kind for name, kind in task.columns.items()}
        if self._settings.keep_bad:
            self._new[f"{prefix}{ERROR}"] = str
        if clash := [name for name in self._new if name in columns]:
            raise ConfigError(
                f"the input has a column {clash[0]!r} already: give the new columns other names, --prefix predicted_"
            )
        return first, columns

    def _run_identity(self) -> Mapping[str, Any]:
        """Return what the output depends on, beside the input."""
        settings, model = self._settings, self._predictor.model
        engine = ("engine_slots", "engine_threads_per_slot", "batch_tokens")
        names = ("prefix", "keep_bad", "input_format", "output_format", *engine)
        return {
            "model": f"{model.name} {model.version}",
            "columns": settings.columns,
            **settings.options,
            **{name: getattr(settings, name) for name in names},
        }

    def _predicted(self, rows: Iterator[InputRow], share_read: Callable[[], float | None]) -> Iterator[Done]:
        """Yield chunks with their predictions, in order, until the end or a stop."""
        pending = deque[tuple[Chunk, Future[list[Prediction]] | None, float | None]]()
        for chunk in chunks(map(self._without_clash, rows), size_of):
            good = [row.values for row in chunk if not row.fault]
            pending.append((chunk, self._predictor.submit(good) if good else None, share_read()))
            if len(pending) == IN_FLIGHT:
                yield from self._waited(*pending.popleft())
            if self._stopped():
                return
        while pending and not self._stopped():
            yield from self._waited(*pending.popleft())

    def _waited(
        self, chunk: Chunk, future: "Future[list[Prediction]] | None", share: float | None
    ) -> Iterator[Done]:
        """Yield a chunk when its predictions are there; nothing after a stop."""
        while not self._stopped():
            try:
                yield chunk, future.result(POLL_S) if future is not None else [], share
                return
            except TimeoutError:
                continue

    def _without_clash(self, row: InputRow) -> InputRow:
        """Mark a row of JSON lines as bad if it already has a column with the name of a new one."""
        if not row.fault and not self._new.keys().isdisjoint(row.values):
            clash = next(name for name in self._new if name in row.values)
            row.fault = f"has a column {clash!r}, which is the name of a new one (--prefix)"
        return row

    def _write(self, chunk: Chunk, predictions: Sequence[Prediction]) -> Sequence[InputRow]:
        """Write a chunk's rows, the bad ones to a file of their own; count these and return them."""
        prefix, keeps, left = self._settings.prefix, self._settings.keep_bad, iter(predictions)
        output, lines, bad = self._files.output, list[bytes](), list[InputRow]()
        for row in chunk:
            prediction = Prediction(reason=row.fault) if row.fault else next(left)
            row.fault = prediction.reason
            new = (
                dict.fromkeys(self._new)
                if row.fault
                else {f"{prefix}{name}": value for name, value in prediction.columns.items()}
            )
            if keeps:
                new[f"{prefix}{ERROR}"] = row.fault or None
            if keeps or not row.fault:
                refusal = output.refusal(row, new)
                row.fault = row.fault or refusal
                if not refusal:
                    lines.append(output.line(row, new))
            if row.fault:
                bad.append(row)
        self._files.write(lines, map(bad_line, bad))
        self._files.progress.bad += len(bad)
        if self._files.bad_name is None:
            for row in bad[: max(0, SHOWN_BAD - self._shown)]:
                self._report.say(f"row {row.number}: {row.fault}", always=True)
            self._shown += len(bad)
        return bad

    def _check_bad(self, bad: Sequence[InputRow]) -> None:
        """Raise TooManyBadError if there are more bad rows than may be."""
        progress, limit = self._files.progress, self._settings.max_bad
        if limit is None or progress.bad <= limit:
            return
        self._files.record()
        where = f"; all are in {self._files.bad_now}" if self._files.bad_now else ""
        last = f"the last: row {bad[-1].number}: {bad[-1].fault}" if bad else "an earlier run found them"
        raise TooManyBadError(
            f"{progress.bad} of the first {progress.rows:,} rows are bad, and {limit} may be (--max-bad); {last}{where}"
        )


def size_of(row: InputRow) -> int:
    """Return the characters of a row, about."""
    return len(row.raw) or characters(row.values)


def bad_line(row: InputRow) -> bytes:
    """Return the line of a bad row: its number, the reason, and the row itself or its text."""
    place = {"row": row.number} if row.line is None else {"row": row.number, "line": row.line}
    values: Any = values_of(row) or row.raw
    return to_json({**place, "reason": row.fault, "input": values}) + b"\n"
