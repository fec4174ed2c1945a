"""The call of each task: its path, the lists that go together, and the reader of its results."""

import dataclasses
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from bert_client.calls import Call, Ranking, Vector, Vectors
from bert_client.results import Answer, Choice, Classification, Entity, FilledMask, Match, Token, Wire

R = TypeVar("R")
OWN = ("timeout", "info")
"""Options that the service does not see."""


def columns(**fields: Any) -> tuple[dict[str, list[Any]], dict[str, object]]:
    """Return the fields that are lists, and those that go with each row; all lists must have one length.

    Raises ValueError for lists of several lengths.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    lists = {name: list(value) for name, value in given.items() if not isinstance(value, str)}
    if len({len(items) for items in lists.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(items)}" for name, items in lists.items())
        raise ValueError(f"lists that go together must have one length: {lengths}")
    return lists, {name: value for name, value in given.items() if isinstance(value, str)}


def call(
    path: str,
    read: Callable[[Wire], R],
    options: Mapping[str, Any],
    *,
    kind: type[Call[R]] = Call,
    **fields: Any,
) -> Call[R]:
    """Return the call of rows; where every field is one string, it has one row."""
    lists, constants = columns(**fields)
    return kind(
        path,
        read,
        (lists,),
        constants | wire_options(options),
        row_texts=max(1, len(lists)),
        common_texts=len(constants),
        one=not lists,
        **_own(options),
    )


def classify(options: Mapping[str, Any], text: Any, text_pair: Any = None) -> Call[Classification]:
    """Return a call of /classify."""
    return call("/classify", Classification.of, options, text=text, text_pair=text_pair)


def ner(options: Mapping[str, Any], text: Any) -> Call[list[Entity]]:
    """Return a call of /ner."""
    return call("/ner", Entity.all_of, options, text=text)


def qa(options: Mapping[str, Any], question: Any, context: Any) -> Call[Answer]:
    """Return a call of /qa."""
    return call("/qa", Answer.of, options, question=question, context=context)


def embed(options: Mapping[str, Any], text: Any) -> Call[Vector]:
    """Return a call of /embed; vectors come as base64, which is shorter than numbers in JSON."""
    return call("/embed", _vector, {**options, "encoding_format": "base64"}, kind=Vectors, text=text)


def fill_mask(options: Mapping[str, Any], text: Any) -> Call[list[FilledMask]]:
    """Return a call of /fill-mask."""
    return call("/fill-mask", FilledMask.all_of, options, text=text)


def tokenize(options: Mapping[str, Any], text: Any) -> Call[list[Token]]:
    """Return a call of /tokenize."""
    return call("/tokenize", Token.all_of, options, text=text)


def multiple_choice(options: Mapping[str, Any], prompt: Any, choices: Any) -> Call[Choice]:
    """Return a call of /multiple-choice; `choices` is one list for all prompts, or a list for each."""
    if isinstance(choices, str):
        raise TypeError("choices must be a list of strings, not one string")
    choices = list(choices)
    for_all = all(isinstance(each, str) for each in choices)
    if not for_all and any(isinstance(each, str) for each in choices):
        raise TypeError("choices must be a list of strings for each prompt, not one string")
    lists, constants = columns(prompt=prompt, choices=None if for_all else choices)
    if for_all:
        constants["choices"] = choices
    most = len(choices) if for_all else max(map(len, choices))
    constants |= wire_options(options)
    row_texts = 1 + most  # the service counts choices as often as it reads them
    return Call("/multiple-choice", Choice.of, (lists,), constants, row_texts, one=not lists, **_own(options))


STREAMED: Mapping[str, Callable[..., Call[Any]]] = {
    "classify": classify,
    "ner": ner,
    "qa": qa,
    "embed": embed,
    "fill_mask": fill_mask,
    "tokenize": tokenize,
    "multiple_choice": multiple_choice,
}
"""Calls with a result for each item."""


def stream_call(task: str, options: Mapping[str, Any], first: int, items: list[Any]) -> Call[Any]:
    """Return the call of items whose places begin at `first`: texts, or tuples of what the task takes.

    Raises ValueError for a task that has no result for each item.
    """
    if task not in STREAMED:
        raise ValueError(f"task must be one of {', '.join(STREAMED)}, not {task!r}")
    fields = [items] if isinstance(items[0], str) else list(zip(*items, strict=True))
    if task == "multiple_choice" and any(isinstance(each, str) for each in fields[-1]):
        raise TypeError("choices must be a list of strings for each prompt, not one string")
    places = range(first, first + len(items))
    return dataclasses.replace(STREAMED[task](options, *fields), places=places)


def similarity(options: Mapping[str, Any], text: Any, candidates: Iterable[str]) -> Ranking:
    """Return a call of /similarity."""
    return _ranking("/similarity", options, *columns(text=text), candidates)


def rerank(options: Mapping[str, Any], query: str, candidates: Iterable[str]) -> Ranking:
    """Return a call of /rerank."""
    return _ranking("/rerank", options, {}, {"query": query}, candidates)


def _ranking(
    path: str,
    options: Mapping[str, Any],
    lists: dict[str, list[Any]],
    constants: dict[str, object],
    candidates: Iterable[str],
) -> Ranking:
    if isinstance(candidates, str):
        raise TypeError("candidates must be a list of strings, not one string")
    return Ranking(
        path,
        _no_row,
        (lists, {"candidates": list(candidates)}),
        constants | wire_options(options),
        common_texts=len(constants),
        one=not lists,
        top_k=options.get("top_k"),
        **_own(options),
    )


def wire_options(options: Mapping[str, Any]) -> dict[str, object]:
    """Return the options that are sent."""
    return {name: value for name, value in options.items() if value is not None and name not in OWN}


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and name in OWN}


def _vector(wire: Wire) -> Vector:
    return np.frombuffer(b64decode(wire["embedding"]), "<f4").astype(np.float32)


def _no_row(wire: Wire) -> list[Match]:
    raise NotImplementedError
