"""Results as JSON: the plain dicts that the schemas describe, serialised in one go."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json
from starlette.responses import Response

from bert.tasks.classification import Classification
from bert.tasks.embedding import Ranked
from bert.tasks.fill_mask import FilledMask
from bert.tasks.ner import Entity
from bert.tasks.spans import Answer
from service.call import Call
from service.pipeline import Embedded, Token

EMBEDDING_DECIMALS = 8
"""Of numbers up to 1: all that a 32-bit float holds."""


class JsonAnswer(Response):
    """A 200 whose headers are known."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Write them; there are no others."""
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def answer(call: Call, results: Sequence[dict[str, Any]]) -> Response:
    """Return the 200 with these results."""
    body = {"model": call.model, "results": results, "usage": {"tokens": call.tokens}}
    # A number that is not finite is no JSON; the scheduler lets none through, and this would show one as
    # null.
    return JsonAnswer(to_json(body, inf_nan_mode="null"))


def classified(results: Sequence[Classification], truncated: Sequence[bool]) -> list[dict[str, Any]]:
    """Return results of /classify."""
    return [
        {
            "label": result.label,
            "score": result.score,
            "scores": [{"label": label, "score": score} for label, score in result.scores],
            "truncated": cut,
        }
        for result, cut in zip(results, truncated, strict=True)
    ]


def recognised(texts: Sequence[Sequence[Entity]]) -> list[dict[str, Any]]:
    """Return results of /ner."""
    return [
        {
            "entities": [
                {"text": e.text, "label": e.label, "start": e.start, "end": e.end, "score": e.score}
                for e in entities
            ]
        }
        for entities in texts
    ]


def ranked(rankings: Sequence[Sequence[Ranked]], embedded: Embedded) -> list[dict[str, Any]]:
    """Return results of /similarity; `embedded` holds the texts, then the candidates."""
    cut, queries = embedded.truncated, len(rankings)
    return [
        {
            "text_index": query,
            "index": found.index,
            "score": found.score,
            "truncated": cut[query] or cut[queries + found.index],
        }
        for query, ranking in enumerate(rankings)
        for found in ranking
    ]


def answered(answers: Sequence[Answer]) -> list[dict[str, Any]]:
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


def filled(texts: Sequence[Sequence[FilledMask]]) -> list[dict[str, Any]]:
    """Return results of /fill-mask."""
    return [
        {
            "masks": [
                {
                    "start": mask.start,
                    "end": mask.end,
                    "candidates": [
                        {"token": c.token, "id": c.id, "score": c.score, "sequence": c.sequence}
                        for c in mask.candidates
                    ],
                }
                for mask in masks
            ]
        }
        for masks in texts
    ]


def embeddings(embedded: Embedded) -> list[dict[str, Any]]:
    """Return results of /embed."""
    vectors = np.round(embedded.vectors.astype(np.float64), EMBEDDING_DECIMALS).tolist()
    return [
        {"embedding": vector, "truncated": cut}
        for vector, cut in zip(vectors, embedded.truncated, strict=True)
    ]


def tokenized(texts: Sequence[Sequence[Token]]) -> list[dict[str, Any]]:
    """Return results of /tokenize."""
    return [
        {
            "tokens": [
                {"id": t.id, "text": t.text, "start": t.start, "end": t.end, "special": t.special}
                for t in tokens
            ]
        }
        for tokens in texts
    ]
