"""The tasks of bulk prediction: fields that are read from a row, columns that a row gets, options that are taken.

A task is one call of the pipeline. Names of fields, columns and options are those of the endpoints (docs/api.md).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bert.errors import ConfigError
from bert.tasks.aggregation import Aggregation, EntityOptions
from bert.tasks.classification import Scoring, WindowMerge
from bert.tasks.similarity import likeness
from bert.tasks.spec import TaskSpec
from service.bulk.options import OPTIONS
from service.engine.loaded_model import Model
from service.pipeline.inputs import (
    Choices,
    RequestContext,
    Texts,
    check_allows_no_answer,
    check_entity_types,
    check_left_out,
    check_not_blank,
    prompted,
)
from service.pipeline.pipeline import Pipeline

Columns = dict[str, Any]
Fields = Mapping[str, list[Any]]
"""Values of each field, in the order of the rows."""
Predict = Callable[[Pipeline, RequestContext, Model, Fields, Mapping[str, Any]], Awaitable[list[Columns]]]
SPAN = {"start": int, "end": int, "score": float}
SCORED_LABEL = {"label": str, "score": float}


@dataclass(frozen=True, slots=True)
class BulkTask:
    """What a model does with a row."""

    fields: tuple[str, ...]
    columns: Mapping[str, Any]
    """New column → its type: str, int, float or bool; a list has the type of an item in it, an object those of its keys;
    np.float32 is a vector."""
    predict: Predict


async def _classify(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    pair = Texts("text_pair", read["text_pair"], True) if "text_pair" in read else None
    shows_all = _shows_scores(model.spec, options)
    text, truncate = Texts("text", read["text"], True), bool(options.get("truncate"))
    top_k = options.get("top_k") if shows_all else 1
    scoring = Scoring(top_k, options.get("threshold"), options.get("temperature"))
    windows: WindowMerge | None = options.get("windows")
    results, truncated = await pipeline.classify(
        request, model, text, pair, scoring, truncate=truncate, windows=windows
    )
    rows: list[Columns] = [{"label": each.label, "score": each.score} for each in results]
    if shows_all:
        for row, each in zip(rows, results, strict=True):
            row["scores"] = [{"label": label, "score": score} for label, score in each.scores]
    return _with_truncated(rows, truncated, truncate)


async def _entities(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    wanted = options.get("labels")
    types = check_entity_types(model, wanted) if wanted is not None else None
    aggregation = Aggregation(options.get("aggregation", Aggregation.FIRST))
    kinds = check_left_out(options["left_out"]) if "left_out" in options else frozenset[str]()
    asked = EntityOptions(aggregation, options.get("min_score", 0.0), types, kinds)
    found = await pipeline.entities(request, model, Texts("text", read["text"], True), asked)
    return [{"entities": [_as_dict(entity) for entity in entities]} for entities in found]


async def _answer(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    question, context = (Texts(name, read[name], True) for name in ("question", "context"))
    if "no_answer_threshold" in options:
        check_allows_no_answer(model, options["no_answer_threshold"])
    asked = {"top_k": 1, "max_answer_tokens": None, **options}
    found = await pipeline.answers(request, model, question, context, **asked)
    rows: list[Columns] = [
        {name: getattr(each, name) for name in ("answer", "score", "start", "end", "no_answer_score")}
        for each in found
    ]
    if "top_k" in options:
        for row, each in zip(rows, found, strict=True):
            row["alternatives"] = [
                {"answer": span.text, "score": span.score, "start": span.start, "end": span.end}
                for span in each.alternatives
            ]
    return rows


async def _embed(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    truncate = bool(options.get("truncate"))
    text = prompted(Texts("text", read["text"], True), model, options.get("prompt_name"))
    embedded = await pipeline.embed(
        request, model, text, truncate=truncate, dimensions=options.get("dimensions")
    )
    rows: list[Columns] = [{"embedding": vector} for vector in np.ascontiguousarray(embedded.vectors)]
    return _with_truncated(rows, embedded.truncated, truncate)


async def _compare(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    truncate, count = bool(options.get("truncate")), len(read["text"])
    prompt = options.get("prompt_name")
    pair = [prompted(Texts(name, read[name], True), model, prompt) for name in ("text", "text_pair")]
    embedded = await pipeline.embed(
        request, model, *pair, truncate=truncate, dimensions=options.get("dimensions"), shown=False
    )
    vectors, cut = embedded.vectors, embedded.truncated
    scores = likeness(vectors[:count], vectors[count:], model.spec.similarity)
    rows: list[Columns] = [{"score": score} for score in scores.tolist()]
    return _with_truncated(rows, [cut[n] or cut[count + n] for n in range(count)], truncate)


async def _choose(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    prompt, choices = Texts("prompt", read["prompt"], True), Choices(read["choices"], True)
    check_not_blank(prompt)
    top_k, truncate = options.get("top_k"), bool(options.get("truncate"))
    found, truncated = await pipeline.choose(
        request, model, prompt, choices, len(prompt), top_k=top_k, truncate=truncate
    )
    rows = []
    for texts, scored in zip(choices.lists, found, strict=True):
        scores = [{"index": each.index, "choice": texts[each.index], "score": each.score} for each in scored]
        rows.append({**scores[0], **({"scores": scores} if "top_k" in options else {})})
    return _with_truncated(rows, truncated, truncate)


async def _fill(
    pipeline: Pipeline, request: RequestContext, model: Model, read: Fields, options: Mapping[str, Any]
) -> list[Columns]:
    text = Texts("text", read["text"], True)
    filled = await pipeline.fill_masks(request, model, text, **{"top_k": 5, **options})

    def decode() -> list[Columns]:
        return [{"masks": [_filled(mask) for mask in masks]} for masks in filled.texts]

    return await pipeline.run_in_thread(decode)


def bulk_task(model: Model, names: Collection[str], options: Mapping[str, Any]) -> BulkTask:
    """Return what a model does with rows of fields of these names.

    A model of embeddings compares two texts and embeds one. Raises ConfigError for an option that it does not have.
    """
    spec = model.spec
    kind = spec.task
    if kind == "similarity" and "text_pair" not in names:
        kind = "embed"
    known = OPTIONS[kind]
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"model {model.name!r} is for {spec.task}, which has no option {unknown[0]}; it has {', '.join(known) or 'none'}"
        )
    cut = {"truncated": bool} if options.get("truncate") else {}
    if kind == "classification":
        has_pair = spec.pair or (spec.pair is None and "text_pair" in names)
        scores = {"scores": [SCORED_LABEL]} if _shows_scores(spec, options) else {}
        read = ("text", "text_pair") if has_pair else ("text",)
        return BulkTask(read, {**SCORED_LABEL, **scores, **cut}, _classify)
    return _other_task(kind, spec, options, cut)


def _other_task(kind: str, spec: TaskSpec, options: Mapping[str, Any], cut: Mapping[str, Any]) -> BulkTask:
    shows_all = "top_k" in options
    if kind == "ner":
        return BulkTask(("text",), {"entities": [{"text": str, "label": str, **SPAN}]}, _entities)
    if kind == "qa":
        answer = {"answer": str, "score": float, "start": int, "end": int}
        others = {"alternatives": [answer]} if shows_all else {}
        return BulkTask(("question", "context"), {**answer, "no_answer_score": float, **others}, _answer)
    if kind == "similarity":
        return BulkTask(("text", "text_pair"), {"score": float, **cut}, _compare)
    if kind == "embed":
        return BulkTask(("text",), {"embedding": np.float32, **cut}, _embed)
    if kind == "multiple_choice":
        choice = {"index": int, "choice": str, "score": float}
        scores = {"scores": [choice]} if shows_all else {}
        return BulkTask(("prompt", "choices"), {**choice, **scores, **cut}, _choose)
    candidate = {"token": str, "id": int, "score": float, "sequence": str}
    masks = {"start": int, "end": int, "candidates": [candidate]}
    return BulkTask(("text",), {"masks": [masks]}, _fill)


def _shows_scores(spec: TaskSpec, options: Mapping[str, Any]) -> bool:
    """Tell whether a classification has a list of scores: where that is asked for, or several labels may hold."""
    return "top_k" in options or "threshold" in options or spec.problem_type == "multi_label"


def sample_of(kind: str) -> dict[str, Any]:
    """Return a row of any task, by which wrong options are found before the first real one."""
    text = "a [MASK]" if kind == "fill_mask" else "a"
    texts = dict.fromkeys(("text_pair", "question", "context", "prompt"), "a")
    return {"text": text, **texts, "choices": ["a", "b"]}


def _with_truncated(rows: list[Columns], truncated: Sequence[bool], truncate: bool) -> list[Columns]:
    """Say of each row whether it was cut, where rows may be."""
    if truncate:
        for row, cut in zip(rows, truncated, strict=True):
            row["truncated"] = cut
    return rows


def _as_dict(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _filled(mask: Any) -> dict[str, Any]:
    return {**_as_dict(mask), "candidates": [_as_dict(each) for each in mask.candidates]}
