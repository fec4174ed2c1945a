"""The call of each task: its path, the lists that go together, and the reader of its results."""

import dataclasses
import reprlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bert_client.calls import Call, Ranking, Vector, Vectors
from bert_client.results import (
    Answer,
    Choice,
    Classification,
    Entity,
    FilledMask,
    JsonObject,
    Match,
    SparseVector,
    Token,
)

R = TypeVar("R")
OWN = ("timeout", "info")
"""Options that the service does not see."""


DTYPES = {"float": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}
"""`embedding_type` → numpy's name of its numbers."""


def shown(value: object) -> str:
    """Return a value and its type for an error, long ones cut."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def item_list(name: str, value: Any, rule: str = "a list of strings") -> list[Any]:
    """Return the items of a field; raises TypeError for a string, bytes, and what has no items or no order."""
    if isinstance(value, str | bytes | bytearray | Mapping | Set) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {rule}, not {shown(value)}")
    return list(value)


def all_texts(name: str, items: list[Any]) -> list[str]:
    """Return the items of a field, which must be strings; raises TypeError."""
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(f"{name}[{place}] must be a string, not {shown(item)}")
    return items


def texts(name: str, value: Any) -> str | list[str]:
    """Return a field that takes a string or a list of strings; raises TypeError."""
    if isinstance(value, str):
        return value
    return all_texts(name, item_list(name, value, "a string or a list of strings"))


def columns(**fields: str | list[Any]) -> tuple[dict[str, list[Any]], dict[str, object]]:
    """Return the fields that are lists, and those that go with each row; all lists must have one length.

    Raises ValueError for lists of several lengths.
    """
    lists = {name: value for name, value in fields.items() if not isinstance(value, str)}
    if len({len(items) for items in lists.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(items)}" for name, items in lists.items())
        raise ValueError(f"lists that go together must have one length: {lengths}")
    return lists, {name: value for name, value in fields.items() if isinstance(value, str)}


def call(
    path: str,
    read: Callable[[JsonObject], R],
    options: Mapping[str, Any],
    *,
    kind: type[Call[R]] = Call,
    **fields: Any,
) -> Call[R]:
    """Return the call of rows; where every field is one string, it has one row. Raises TypeError and ValueError."""
    lists, constants = columns(**{name: texts(name, value) for name, value in fields.items()})
    return kind(
        path,
        read,
        (lists,),
        constants | sent_options(options),
        row_texts=max(1, len(lists)),
        common_texts=len(constants),
        one=not lists,
        **_own(options),
    )


def classify(options: Mapping[str, Any], text: Any, text_pair: Any = None) -> Call[Classification]:
    """Return a call of /classify; a text counts once for each of the labels that are sent along."""
    pair = {} if text_pair is None else {"text_pair": text_pair}
    made = _with_labels("/classify", Classification.of, options, text=text, **pair)
    labels = made.constants.get("labels")
    return dataclasses.replace(made, row_texts=max(1, len(labels))) if isinstance(labels, Sized) else made


def ner(options: Mapping[str, Any], text: Any) -> Call[list[Entity]]:
    """Return a call of /ner."""
    return _with_labels("/ner", Entity.all_of, options, text=text)


def _with_labels(
    path: str, read: Callable[[JsonObject], R], options: Mapping[str, Any], *, text: Any, **pair: Any
) -> Call[R]:
    """Return the call of texts; lists of labels, one for each text, are split with the texts."""
    labels = options.get("labels")
    if isinstance(text, str) or not (isinstance(labels, list | tuple) and _are_nested(labels)):
        return call(path, read, options, text=text, **pair)
    made = call(path, read, {**options, "labels": None}, text=text, **pair)
    lists, _ = columns(**dict[str, Any](made.groups[0]), labels=_nested_texts("labels", labels))
    return dataclasses.replace(made, groups=(lists,), row_texts=max(1, *map(len, lists["labels"])))


def _are_nested(items: Iterable[Any]) -> bool:
    return any(isinstance(each, list | tuple) for each in items)


def _nested_texts(name: str, items: Iterable[Any]) -> list[list[str]]:
    """Return the lists of strings of a field; raises TypeError."""
    return [all_texts(f"{name}[{i}]", item_list(f"{name}[{i}]", each)) for i, each in enumerate(items)]


def qa(options: Mapping[str, Any], question: Any, context: Any) -> Call[Answer]:
    """Return a call of /qa."""
    return call("/qa", Answer.of, options, question=question, context=context)


def embed(options: Mapping[str, Any], text: Any) -> Call[Vector]:
    """Return a call of /embed; vectors come as base64, which is shorter than numbers in JSON."""
    kind = options.get("embedding_type") or "float"
    read = partial(_vector, DTYPES.get(kind, "u1"))  # the service refuses a type that is not known
    return call("/embed", read, {**options, "encoding_format": "base64"}, kind=Vectors, text=text)


def embed_sparse(options: Mapping[str, Any], text: Any) -> Call[SparseVector]:
    """Return a call of /embed for sparse vectors."""
    return call("/embed", SparseVector.of, {**options, "vectors": "sparse"}, text=text)


def fill_mask(options: Mapping[str, Any], text: Any) -> Call[list[FilledMask]]:
    """Return a call of /fill-mask."""
    return call("/fill-mask", FilledMask.all_of, options, text=text)


def tokenize(options: Mapping[str, Any], text: Any) -> Call[list[Token]]:
    """Return a call of /tokenize."""
    return call("/tokenize", Token.all_of, options, text=text)


def multiple_choice(options: Mapping[str, Any], prompt: Any, choices: Any) -> Call[Choice]:
    """Return a call of /multiple-choice; `choices` is one list for all prompts, or a list for each."""
    choices = item_list("choices", choices)
    for_all = not _are_nested(choices)
    if for_all:
        lists, constants = columns(prompt=texts("prompt", prompt))
        constants["choices"] = all_texts("choices", choices)
    else:
        lists, constants = columns(prompt=texts("prompt", prompt), choices=_nested_texts("choices", choices))
    most = len(choices) if for_all else max(map(len, choices))
    constants |= sent_options(options)
    row_texts = 1 + most  # the service counts choices as often as it reads them
    return Call("/multiple-choice", Choice.of, (lists,), constants, row_texts, one=not lists, **_own(options))


STREAMED: Mapping[str, Callable[..., Call[Any]]] = {
    "classify": classify,
    "ner": ner,
    "qa": qa,
    "embed": embed,
    "embed_sparse": embed_sparse,
    "fill_mask": fill_mask,
    "tokenize": tokenize,
    "multiple_choice": multiple_choice,
}
"""Calls with a result for each item."""
PAIRS = {
    "classify": "(text, text_pair)",
    "qa": "(question, context)",
    "multiple_choice": "(prompt, list of choices)",
}
"""Streamed tasks whose items are tuples; those of `classify` may be strings too."""


def stream_call(task: str, options: Mapping[str, Any], first: int, items: list[Any]) -> Call[Any]:
    """Return the call of items whose places begin at `first`: texts, or tuples of what the task takes.

    Raises ValueError for a task that has no result for each item, and TypeError for an item that it does not take.
    """
    if task not in STREAMED:
        raise ValueError(f"task must be one of {', '.join(STREAMED)}, not {task!r}")
    one = ["a string"] if task not in PAIRS or task == "classify" else []
    rule = " or ".join([*one, *([PAIRS[task]] if task in PAIRS else [])])
    for place, item in enumerate(items, first):
        if not (one if isinstance(item, str) else _is_pair(task, item)):
            raise TypeError(f"items[{place}] must be {rule}, not {shown(item)}")
        if isinstance(item, str) != isinstance(items[0], str):
            kind = "a string" if isinstance(items[0], str) else PAIRS[task]
            raise TypeError(f"items[{place}] must be {kind} like items[{first}], not {shown(item)}")
    fields = [items] if isinstance(items[0], str) else list(zip(*items, strict=True))
    places = range(first, first + len(items))
    return dataclasses.replace(STREAMED[task](options, *fields), places=places)


def _is_pair(task: str, item: Any) -> bool:
    """Tell whether a streamed item is the tuple that its task takes."""
    if task not in PAIRS or not isinstance(item, tuple | list) or len(item) != 2:
        return False
    first, second = item
    if task == "multiple_choice":
        choices = isinstance(second, tuple | list) and all(isinstance(each, str) for each in second)
        return isinstance(first, str) and choices
    return isinstance(first, str) and isinstance(second, str)


def similarity(options: Mapping[str, Any], text: Any, candidates: Iterable[str]) -> Ranking:
    """Return a call of /similarity."""
    return _ranking("/similarity", options, *columns(text=texts("text", text)), candidates)


def rerank(options: Mapping[str, Any], query: str, candidates: Iterable[str]) -> Ranking:
    """Return a call of /rerank."""
    if not isinstance(query, str):
        raise TypeError(f"query must be a string, not {shown(query)}")
    return _ranking("/rerank", options, {}, {"query": query}, candidates)


def _ranking(
    path: str,
    options: Mapping[str, Any],
    lists: dict[str, list[Any]],
    constants: dict[str, object],
    candidates: Iterable[str],
) -> Ranking:
    candidates = all_texts("candidates", item_list("candidates", candidates))
    return Ranking(
        path,
        _no_row,
        (lists, {"candidates": candidates}),
        constants | sent_options(options),
        common_texts=len(constants),
        one=not lists,
        top_k=options.get("top_k"),
        **_own(options),
    )


def sent_options(options: Mapping[str, Any]) -> dict[str, object]:
    """Return the options that are sent."""
    return {name: value for name, value in options.items() if value is not None and name not in OWN}


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and name in OWN}


def _vector(dtype: str, content: JsonObject) -> Vector:
    if "embedding" not in content:
        raise ValueError("the model gives other vectors than dense ones; name a model of those")
    found = np.frombuffer(b64decode(content["embedding"]), dtype)
    return found.astype(found.dtype.newbyteorder("="))


def _no_row(content: JsonObject) -> list[Match]:
    raise NotImplementedError
