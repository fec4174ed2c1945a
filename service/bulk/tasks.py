"""The tasks of bulk prediction: fields that are read from a row, columns that a row gets, options that are taken.

A task is that of the endpoint (`service.tasks.table`), whose names fields, columns and options have.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pydantic
from typing_extensions import is_typeddict

from bert.errors import ConfigError
from bert.tasks.registry import TASKS
from bert.tasks.vectors.output_types import DTYPES
from bert.tasks.vectors.similarity import likeness
from service.engine.models import Model
from service.pipeline.inputs import Texts
from service.tasks.schema import Item, Schema
from service.tasks.table import BY_ROW
from service.tasks.task import PART, Call, ServedTask, embed, prompted

Columns = dict[str, Any]
Fields = Mapping[str, list[Any]]
"""Values of each field, in the order of the rows."""
FIELDS = frozenset(name for task in BY_ROW.values() for name in task.texts)
"""Fields of all tasks."""


@dataclass(frozen=True, slots=True)
class BulkTask:
    """What a model does with a row."""

    fields: tuple[str, ...]
    columns: Mapping[str, Any]
    """New column → its type: str, int, float or bool; a list has the type of an item in it, an object those of its keys;
    a type of numpy's, such as np.float32, is that of a vector's numbers."""
    predict: Callable[[Call, Fields], Awaitable[list[Columns]]]


def bulk_task(model: Model, names: Collection[str], options: Mapping[str, Any]) -> BulkTask:
    """Return what a model does with rows of fields of these names.

    A model of embeddings compares two texts and embeds one. Raises ConfigError for an option that it does not have.
    """
    spec, task = model.spec, BY_ROW[model.spec.task]
    is_compared = TASKS[spec.task].embeds and "text_pair" in names
    if unknown := [name for name in options if name not in task.options]:
        known = ", ".join(task.options) or "none"
        raise ConfigError(
            f"model {model.name!r} is for {spec.task}, which has no option {unknown[0]}; it has {known}"
        )
    if options.get("late_chunking"):
        raise ConfigError("late_chunking is for the chunks of one document, and rows are texts of their own")
    if is_compared:
        if "embedding_type" in options:
            raise ConfigError("embedding_type is for vectors, and two texts get a score")
        cut = {"truncated": bool} if options.get("truncate") else {}
        return BulkTask(("text", "text_pair"), {"score": float, **cut}, partial(_compare, options))
    left_out = {*task.lacks(spec)} | (set() if options.get("truncate") else {"truncated"})
    if task.more and not task.shows_more(spec, options):
        left_out.add(task.more)
        options = {"top_k": 1, **options}  # the best is enough
    kinds = {name: kind for name, kind in get_type_hints(task.result).items() if name not in left_out}
    columns = {name: _column_type(kind) for name, kind in kinds.items()}
    if "embedding_type" in options and "embedding" in columns:
        columns["embedding"] = np.dtype(DTYPES.get(options["embedding_type"], "<f4")).type
    read = task.fields_among(spec, names, options)
    sample = {name: value for name, value in sample_of(spec.task).items() if name in read}
    try:
        request = task.request.model_validate({**sample, **options})
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{first['loc'][0]}: {first['msg']}") from None
    for name in task.request.nested.difference(read):
        if any(isinstance(each, list) for each in getattr(request, name) or ()):
            raise ConfigError(f"{name}: has a list for each text, and here one list holds for all rows")
    return BulkTask(read, columns, partial(_predict, task, request, columns))


async def _predict(
    task: ServedTask[Any], request: Schema, columns: Collection[str], call: Call, read: Fields
) -> list[Columns]:
    """Return these columns of the results of a request with other texts."""
    results = await task.run(call, request.model_copy(update=read))
    return await call.pipeline.run_in_thread(
        lambda: [{name: row[name] for name in columns} for row in results.rows(_plain)]
    )


async def _compare(options: Mapping[str, Any], call: Call, read: Fields) -> list[Columns]:
    """Return the likeness of two texts, which has no endpoint of its own."""
    truncate, count = bool(options.get("truncate")), len(read["text"])
    prompt, dimensions = options.get("prompt_name"), options.get("dimensions")
    pair = [prompted(Texts(name, read[name], True), call.model, prompt) for name in ("text", "text_pair")]
    embedded = await embed(call, *pair, truncate=truncate, dimensions=dimensions, shown=False)
    vectors, cut = embedded.vectors, embedded.truncated
    scores = likeness(vectors[:count], vectors[count:], call.model.spec.similarity)
    rows: list[Columns] = [{"score": score} for score in scores.tolist()]
    if truncate:
        rows = [row | {"truncated": cut[n] or cut[count + n]} for n, row in enumerate(rows)]
    return rows


def sample_of(kind: str) -> dict[str, Any]:
    """Return a row of any task, by which wrong options are found before the first real one."""
    return dict.fromkeys((name for task in BY_ROW.values() for name in task.texts), "a") | BY_ROW[kind].probe


def _plain(items: Iterable[Item], size: int = PART) -> list[Any]:
    """Return the items as dicts."""
    return [
        {field.name: getattr(each, field.name) for field in fields(each)} if is_dataclass(each) else each
        for each in items
    ]


def _column_type(kind: Any) -> Any:
    """Return the type of a column of a result's field."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _column_type(get_args(kind)[0])
    if origin in (list, Sequence):
        item = get_args(kind)[0]
        return np.float32 if item is float else [_column_type(item)]
    if is_typeddict(kind) or is_dataclass(kind):
        return {name: _column_type(each) for name, each in get_type_hints(kind).items()}
    return kind
