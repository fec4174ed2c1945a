"""The endpoints that models answer: path, handler, schemas, and an example of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.http import routes, schemas

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
    tokens: int
    """What the request costs with that model."""
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
                "score": 0.999,
                "scores": [{"label": "positive", "score": 0.999}, {"label": "negative", "score": 0.001}],
                "truncated": False,
            }
        ],
        14,
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
                    {"text": "Siemens", "label": "ORG", "start": 33, "end": 40, "score": 0.9},
                    {"text": "Munich", "label": "LOC", "start": 44, "end": 50, "score": 0.98},
                ]
            }
        ],
        12,
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
            {"text_index": 0, "index": 1, "score": 0.61, "truncated": False},
            {"text_index": 0, "index": 0, "score": 0.04, "truncated": False},
        ],
        22,
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
                "score": 0.71,
                "start": 24,
                "end": 30,
                "no_answer_score": 4.7e-06,
                "alternatives": [],
            }
        ],
        27,
        "qa",
    ),
    TaskEndpoint(
        "/embed",
        "similarity",
        routes.embed,
        schemas.EmbedRequest,
        schemas.EmbedResponse,
        {"text": "How do I reset my password?"},
        [{"embedding": [0.00690308, -0.0630234, -0.072044], "truncated": False}],
        9,
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
        9,
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
        4,
        "ner",
    ),
)

EXAMPLE_PAIR = {"text": "A warm film.", "text_pair": "A good one."}
"""Request for a model that reads pairs."""
TRY_FIRST = ("/classify", "/ner", "/similarity", "/qa", "/fill-mask")
"""What `bert-serve` shows as lines to paste."""
