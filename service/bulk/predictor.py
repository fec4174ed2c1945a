"""Rows to predictions: the Python API below `bert-predict`, for other schedulers too.

with Predictor(Path("bundles/sentiment")) as predictor:
    predictor.predict([{"text": "A warm film."}])
"""

import asyncio
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

import orjson

from bert.data.files import NOT_UNICODE
from bert.data.glue import text_columns_of
from bert.encoding import is_unicode
from bert.errors import BertError, BundleError, ConfigError, InputError, InvalidRequestError
from bert.manifest import CUDA
from service.bulk.batch_scheduler import BatchScheduler
from service.bulk.tasks import FIELDS, BulkTask, Fields, bulk_task, sample_of
from service.engine.bundle_folders import all_on_gpu, find_bundles
from service.engine.bundle_loader import BundleLoader
from service.engine.slot_layout import lay_out_slots
from service.pipeline.inputs import RequestContext
from service.pipeline.pipeline import Pipeline
from service.settings import MAX_RESPONSE_BYTES
from service.system import usable_cores
from service.tasks.task import Call

Row = Mapping[str, object]
T = TypeVar("T")
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 512, 65_536
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2**19
"""Most rows and characters that are predicted together: enough texts of each length, and a bounded memory."""
_PLACE = re.compile(rf"\b({'|'.join(FIELDS)})\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The new columns of a row, or the reason why it has none."""

    columns: dict[str, Any] = field(default_factory=dict)
    """Empty for a bad row."""
    reason: str = ""
    """Empty for a good row."""

    @property
    def is_bad(self) -> bool:
        """Tell whether the row could not be predicted."""
        return bool(self.reason)


class Predictor:
    """A loaded bundle that predicts rows. Safe to use from several threads."""

    def __init__(
        self,
        bundle: Path,
        *,
        columns: Mapping[str, str] | None = None,
        engine_slots: int | None = None,
        engine_threads_per_slot: int | None = None,
        batch_tokens: int | None = None,
        verify_hashes: bool = True,
        **options: Any,
    ) -> None:
        """Load a bundle's folder.

        `columns` names the column of a field where it is not the field's own name: {"text": "review"}. The next
        settings are those of `bert-serve`. `options` are the task's, by the names of its endpoint: top_k, truncate, ...
        (`options` of service.tasks.table); one that is None counts as left out. Raises BundleError and ConfigError.
        """
        found = find_bundles([bundle], strict=True)
        layout = lay_out_slots(
            usable_cores(), engine_slots, engine_threads_per_slot, on_gpu=all_on_gpu(found)
        )
        if len(found) > 1:
            names = ", ".join(each.name for each in found.values())
            raise BundleError(f"{bundle} holds several bundles ({names}): name the folder of one")
        (folder,) = found
        model = BundleLoader(found, threads=layout.threads, verify_hashes=verify_hashes).open(folder)
        self.model = model.without_engine()
        self._columns = dict(columns or {})
        if unknown := sorted(set(self._columns) - set(FIELDS)):
            raise ConfigError(
                f"columns names the field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}"
            )
        self._options = {name: value for name, value in options.items() if value is not None}
        self._task: BulkTask | None = None
        bulk_task(self.model, (), self._options)  # wrong options are told before there is a row
        tokens = batch_tokens or (GPU_BATCH_TOKENS if model.provider == CUDA else CPU_BATCH_TOKENS)
        self._scheduler = BatchScheduler(model.engine, layout.slots, tokens)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="predictor", daemon=True)
        self._thread.start()
        self._pipeline = self._call(self._make_pipeline(layout.slots))

    def __enter__(self) -> Self:
        """Return the predictor."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """Return a prediction for each row, in order. A bad row has a reason and spoils no other."""
        futures = [self.submit(chunk) for chunk in chunks(rows, characters)]
        return [prediction for future in futures for prediction in future.result()]

    def submit(self, rows: Sequence[Row]) -> "Future[list[Prediction]]":
        """Begin to predict a chunk of rows, at least one. The very first row decides whether all are pairs."""
        task = self.task_for(rows[0])
        return asyncio.run_coroutine_threadsafe(self._predict(task, rows), self._loop)

    def task_for(self, row: Iterable[str]) -> BulkTask:
        """Return what is done with rows that have these columns; it stays so for all rows that follow."""
        if self._task is None:
            present = set(row)
            if "text" not in self._columns and "text" not in present:
                self._columns = {
                    **dict(zip(("text", "text_pair"), text_columns_of(present), strict=False)),
                    **self._columns,
                }
            named = {name for name in FIELDS if self._columns.get(name, name) in present}
            task = bulk_task(self.model, named, self._options)
            self._call(self._try_options(task))
            self._task = task
        return self._task

    def column_of(self, name: str) -> str:
        """Return the column that holds a field."""
        return self._columns.get(name, name)

    def close(self) -> None:
        """Drop what has not begun, and free the model."""
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _make_pipeline(self, slots: int) -> Pipeline:
        return Pipeline(self._scheduler, slots, sys.maxsize, MAX_RESPONSE_BYTES)

    async def _end(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._pipeline.close()
        await self._scheduler.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _new_call(self) -> Call:
        context = RequestContext("", "bulk", time.monotonic(), math.inf, self.model.name)
        return Call(self._pipeline, context, self.model)

    async def _try_options(self, task: BulkTask) -> None:
        """Raise ConfigError for options that the model cannot have, which every row would be refused for."""
        sample = sample_of(self.model.spec.task)
        values = {name: [sample[name]] for name in task.fields}
        try:
            await task.predict(self._new_call(), values)
        except InputError as error:
            raise ConfigError(str(error)) from None

    async def _predict(self, task: BulkTask, rows: Sequence[Row]) -> list[Prediction]:
        """Predict the rows that can be, all together."""
        found, read = dict[int, Prediction](), dict[int, dict[str, Any]]()
        for index, row in enumerate(rows):
            try:
                read[index] = {name: self._value(row, name) for name in task.fields}
            except InputError as error:
                found[index] = Prediction(reason=str(error))
        await self._predict_read(task, read, found)
        return [found[index] for index in range(len(rows))]

    async def _predict_read(
        self, task: BulkTask, read: dict[int, dict[str, Any]], found: dict[int, Prediction]
    ) -> None:
        """Predict rows by their numbers, without those that the pipeline refuses; halves where it does not say which."""
        while read:
            numbers = list(read)
            values: Fields = {name: [read[n][name] for n in numbers] for name in task.fields}
            call = self._new_call()
            try:
                columns = await task.predict(call, values)
            except BertError as error:
                refused = self._refused(error)
                if not refused and len(numbers) > 1:
                    half = len(numbers) // 2
                    for part in (numbers[:half], numbers[half:]):
                        await self._predict_read(task, {n: read[n] for n in part}, found)
                    return
                for place, reason in (refused or {0: _reason(error, call.context.response_bytes)}).items():
                    found[numbers[place]] = Prediction(reason=reason)
                    del read[numbers[place]]
            else:
                found.update(zip(numbers, map(Prediction, columns), strict=True))
                return

    def _refused(self, error: BertError) -> dict[int, str]:
        """Return the rows that an error names, and what is wrong with each; empty if it names none."""
        refused = dict[int, str]()
        for fault in error.errors if isinstance(error, InvalidRequestError) else ():
            if place := _PLACE.search(fault.field):
                where = _PLACE.sub(lambda found: self.column_of(found[1]), fault.field)
                refused.setdefault(int(place[2]), f"{where}: {fault.message}")
        return refused

    def _value(self, row: Row, name: str) -> Any:
        """Return a field of a row. Raises InputError if it is not there or not of the type that the field has."""
        column = self.column_of(name)
        value = row.get(column)
        if value is None:
            raise InputError(f"{column}: {'is null' if column in row else 'is missing'}")
        if name == "choices":
            return _choices(column, value)
        if not isinstance(value, str):
            raise InputError(f"{column}: is {_described(value)} instead of a text")
        if not is_unicode(value):
            raise InputError(f"{column}: {NOT_UNICODE}")
        return value


def _reason(error: BertError, result_bytes: int) -> str:
    """Return why a row is bad; a result that is too large is told without the service's setting."""
    if result_bytes <= MAX_RESPONSE_BYTES:
        return str(error)
    return (
        f"the result would take up to {result_bytes} bytes, and one may take {MAX_RESPONSE_BYTES}: "
        "ask for fewer results, or shorten the text"
    )


def chunks(rows: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut rows into chunks of at most CHUNK_ROWS and about CHUNK_CHARACTERS; `size_of` counts those of a row."""
    chunk, characters = list[T](), 0
    for row in rows:
        chunk.append(row)
        characters += size_of(row)
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def characters(row: Row) -> int:
    """Return the characters of all texts in a row."""
    return sum(len(value) for value in row.values() if isinstance(value, str))


def _choices(column: str, value: object) -> list[str]:
    """Return a list of choices; as text it is JSON. Raises InputError."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{column}: is no JSON list of texts: {error}") from None
    if not isinstance(value, list) or not all(isinstance(each, str) and is_unicode(each) for each in value):
        raise InputError(f"{column}: is {_described(value)} instead of a list of texts")
    if len(value) < 2:
        raise InputError(f"{column}: has {len(value)} choices; at least two are needed")
    if blank := [number for number, each in enumerate(value) if not each.strip()]:
        raise InputError(f"{column}[{blank[0]}]: is empty")
    return value


def _described(value: object) -> str:
    """Describe a value of a wrong type."""
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return names.get(type(value), f"a {type(value).__name__}")
