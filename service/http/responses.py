"""Serialise results as the schemas describe them. Long lists are serialised in parts, so that no call takes long."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
from starlette.responses import Response

from bert.tasks.classification import Classification
from bert.tasks.fill_mask import FilledMask
from bert.tasks.multiple_choice import ScoredChoice
from bert.tasks.ner import Entity
from bert.tasks.similarity import Ranked
from bert.tasks.spans import Answer
from service.engine.engine_protocol import Floats
from service.http import openapi
from service.pipeline.inputs import Choices, RequestContext
from service.pipeline.pipeline import Token
from service.pipeline.relevance import Embedded, Relevance

PART = 16
"""List items that are serialised in one call, which holds the interpreter's lock."""
LONG_CHARACTERS = 2**15
"""Length from which a text is serialised in a call of its own, in characters."""
MAX_LISTED = 200
"""Maximum indices in the header X-Truncated: proxies accept few kilobytes of headers."""


class JsonResponse(Response):
    """A 200 with two headers."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers; Starlette's own method costs more."""
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def task_response(context: RequestContext, results: Iterable[dict[str, Any]]) -> Response:
    """Return the 200 with these results."""
    usage = {"tokens": context.tokens}
    body: dict[str, object] = {"model": context.model, "results": in_parts(results), "usage": usage}
    if context.warnings:
        body["warnings"] = context.warnings
    return JsonResponse(to_json(body))


def in_parts(items: Iterable[object], size: int = PART) -> list[object] | orjson.Fragment:
    """Return the items as a list, or, if there are `size` or more, as JSON that was serialised in parts.

    Items are dicts, or dataclasses whose fields are those of the schema.
    """
    left = iter(items)
    part = list(islice(left, size))
    if len(part) < size:
        return part
    parts = list[bytes]()
    while part:
        parts.append(to_json(part)[1:-1])
        part = list(islice(left, size))
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def to_json(value: object) -> bytes:
    """Serialise a value; float32 arrays as the shortest numbers that read back equal.

    A number that is not finite becomes null; the scheduler raises an error for those.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def classifications(results: Sequence[Classification], truncated: Sequence[bool]) -> list[dict[str, Any]]:
    """Return results of /classify."""
    return [
        {
            "label": result.label,
            "score": result.score,
            "scores": in_parts({"label": label, "score": score} for label, score in result.scores),
            "truncated": cut,
        }
        for result, cut in zip(results, truncated, strict=True)
    ]


def best_choices(
    results: Sequence[Sequence[ScoredChoice]], choices: Choices, truncated: Sequence[bool]
) -> Iterator[dict[str, Any]]:
    """Yield results of /multiple-choice."""
    for item, (scored, cut) in enumerate(zip(results, truncated, strict=True)):
        texts = choices.lists[choices.for_prompt(item)]
        scores = [{"index": each.index, "choice": texts[each.index], "score": each.score} for each in scored]
        is_long = any(len(text) > LONG_CHARACTERS for text in texts)
        yield {**scores[0], "scores": in_parts(scores, 1 if is_long else PART), "truncated": cut}


def entities(texts: Iterable[Sequence[Entity]]) -> list[dict[str, Any]]:
    """Return results of /ner."""
    return [{"entities": in_parts(found)} for found in texts]


def rankings(
    rankings: Iterable[Sequence[Ranked]], embedded: Embedded, queries: int
) -> Iterator[dict[str, Any]]:
    """Yield results of /similarity; `embedded` holds the queries, then the candidates."""
    cut = embedded.truncated
    for query, ranking in enumerate(rankings):
        for found in ranking:
            yield {
                "text_index": query,
                "index": found.index,
                "score": found.score,
                "truncated": cut[query] or cut[queries + found.index],
            }


def relevances(found: Relevance, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Return results of /rerank for the candidates at these indices."""
    return [
        {"index": index, "score": float(found.scores[index]), "truncated": found.truncated[index]}
        for index in indices
    ]


def answers(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return results of /qa."""
    return [
        {
            "answer": found.answer,
            "score": found.score,
            "start": found.start,
            "end": found.end,
            "no_answer_score": found.no_answer_score,
            "alternatives": [
                {"answer": span.text, "score": span.score, "start": span.start, "end": span.end}
                for span in found.alternatives
            ],
        }
        for found in answers
    ]


def masks(texts: Iterable[Iterable[FilledMask]]) -> Iterator[dict[str, Any]]:
    """Yield results of /fill-mask."""
    return ({"masks": in_parts(map(_filled, masks))} for masks in texts)


def _filled(mask: FilledMask) -> dict[str, Any]:
    return {"start": mask.start, "end": mask.end, "candidates": in_parts(mask.candidates, _part_of(mask))}


def _part_of(mask: FilledMask) -> int:
    """Return how many candidates are serialised in one call; each holds the whole text."""
    is_long = any(len(candidate.sequence) > LONG_CHARACTERS for candidate in mask.candidates)
    return 1 if is_long else PART


def embeddings(embedded: Embedded, *, base64: bool = False) -> list[dict[str, Any]]:
    """Return results of /embed."""
    vectors = np.ascontiguousarray(embedded.vectors)
    return [
        {"embedding": in_base64(vector) if base64 else vector, "truncated": cut}
        for vector, cut in zip(vectors, embedded.truncated, strict=True)
    ]


def in_base64(vector: Floats) -> str:
    """Return a vector as OpenAI does: base64 of float32, little endian."""
    return b64encode(vector.astype("<f4").tobytes()).decode()


def npy(context: RequestContext, embedded: Embedded) -> Response:
    """Return the 200 of vectors (N, E) as a NumPy file, with what JSON says beside them in headers."""
    file = BytesIO()
    np.save(file, np.ascontiguousarray(embedded.vectors, "<f4"), allow_pickle=False)
    name = context.model
    headers = {
        "X-Model": name if name.isascii() and name.isprintable() else quote(name),
        "X-Usage-Tokens": str(context.tokens),
    }
    if any(embedded.truncated):
        cut = [str(index) for index, cut in enumerate(embedded.truncated) if cut]
        headers["X-Truncated"] = ",".join(cut[:MAX_LISTED])
        headers["X-Truncated-Count"] = str(len(cut))
    return Response(file.getvalue(), headers=headers, media_type=openapi.NPY)


def tokens(texts: Iterable[Sequence[Token]]) -> list[dict[str, Any]]:
    """Return results of /tokenize."""
    return [{"tokens": in_parts(tokens)} for tokens in texts]
