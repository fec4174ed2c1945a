"""The endpoints that models answer: path, handler, schemas, and an example of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service import routes, schemas

Handler = Callable[[Request], Awaitable[Response]]
PASSAGE = "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics."


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """One POST: its handler, schemas and an example that demo models, or a pretrained one, answer like this."""

    path: str
    task: str
    """Of the models that answer it."""
    handler: Handler
    request: type[BaseModel]
    response: type[BaseModel]
    sent: dict[str, Any]
    results: list[dict[str, Any]]
    model: str


TASK_ENDPOINTS = (
    TaskEndpoint(
        "/classify",
        "classification",
        routes.classify,
        schemas.ClassifyRequest,
        schemas.ClassifyResponse,
        {"text": "A warm, funny film that I would gladly see again."},
        [
            {
                "label": "positive",
                "score": 0.99,
                "scores": [{"label": "positive", "score": 0.99}, {"label": "negative", "score": 0.01}],
                "truncated": False,
            }
        ],
        "sentiment",
    ),
    TaskEndpoint(
        "/ner",
        "ner",
        routes.ner,
        schemas.NerRequest,
        schemas.NerResponse,
        {"text": "Angela Merkel met engineers from Siemens in Munich."},
        [
            {
                "entities": [
                    {"text": "Angela Merkel", "label": "PER", "start": 0, "end": 13, "score": 0.99},
                    {"text": "Siemens", "label": "ORG", "start": 33, "end": 40, "score": 0.98},
                    {"text": "Munich", "label": "LOC", "start": 44, "end": 50, "score": 0.99},
                ]
            }
        ],
        "ner",
    ),
    TaskEndpoint(
        "/similarity",
        "similarity",
        routes.similarity,
        schemas.SimilarityRequest,
        schemas.SimilarityResponse,
        {
            "text": "How do I reset my password?",
            "candidates": ["Opening hours on Sunday", "I forgot my login"],
        },
        [
            {"text_index": 0, "index": 1, "score": 0.58, "truncated": False},
            {"text_index": 0, "index": 0, "score": 0.05, "truncated": False},
        ],
        "similarity",
    ),
    TaskEndpoint(
        "/qa",
        "qa",
        routes.qa,
        schemas.QaRequest,
        schemas.QaResponse,
        {"question": "Where was Marie Curie born?", "context": PASSAGE},
        [
            {
                "answer": "Warsaw",
                "score": 0.97,
                "start": 24,
                "end": 30,
                "no_answer_score": 0.01,
                "alternatives": [],
            }
        ],
        "qa",
    ),
    TaskEndpoint(
        "/embed",
        "similarity",
        routes.embed,
        schemas.EmbedRequest,
        schemas.EmbedResponse,
        {"text": "How do I reset my password?"},
        [{"embedding": [0.04461369, -0.02127581, 0.07253908], "truncated": False}],
        "similarity",
    ),
    TaskEndpoint(
        "/fill-mask",
        "fill_mask",
        routes.fill_mask,
        schemas.FillMaskRequest,
        schemas.FillMaskResponse,
        {"text": "Paris is the [MASK] of France.", "top_k": 2},
        [
            {
                "masks": [
                    {
                        "start": 13,
                        "end": 19,
                        "candidates": [
                            {
                                "token": "capital",
                                "id": 3007,
                                "score": 0.99,
                                "sequence": "Paris is the capital of France.",
                            },
                            {
                                "token": "heart",
                                "id": 2540,
                                "score": 0.01,
                                "sequence": "Paris is the heart of France.",
                            },
                        ],
                    }
                ]
            }
        ],
        "masked",
    ),
    TaskEndpoint(
        "/tokenize",
        "ner",
        routes.tokenize,
        schemas.TokenizeRequest,
        schemas.TokenizeResponse,
        {"text": "Warsaw!"},
        [
            {
                "tokens": [
                    {"id": 101, "text": "[CLS]", "start": 0, "end": 0, "special": True},
                    {"id": 8199, "text": "warsaw", "start": 0, "end": 6, "special": False},
                    {"id": 999, "text": "!", "start": 6, "end": 7, "special": False},
                    {"id": 102, "text": "[SEP]", "start": 0, "end": 0, "special": True},
                ]
            }
        ],
        "ner",
    ),
)

TRY_FIRST = ("/classify", "/ner", "/similarity", "/qa", "/fill-mask")
"""What `bert-serve` shows as lines to paste."""
