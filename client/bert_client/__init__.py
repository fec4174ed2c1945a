"""Client of bert-serve: `Client` and `AsyncClient`."""

from bert_client.async_client import AsyncClient
from bert_client.client import Client
from bert_client.errors import (
    BertError,
    DeadlineExceededError,
    FieldError,
    InvalidRequestError,
    InvalidResponseError,
    ModelLeftOutError,
    NotReadyError,
    OverloadedError,
    ProblemError,
    RequestTimeoutError,
    TooLargeError,
    UnauthorizedError,
    UnknownModelError,
    UnreachableError,
)
from bert_client.results import (
    Answer,
    CallInfo,
    Choice,
    ChoiceScore,
    Classification,
    Entity,
    FilledMask,
    LabelScore,
    MaskCandidate,
    Match,
    ModelInfo,
    Span,
    Token,
)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncClient",
    "BertError",
    "CallInfo",
    "Choice",
    "ChoiceScore",
    "Classification",
    "Client",
    "DeadlineExceededError",
    "Entity",
    "FieldError",
    "FilledMask",
    "InvalidRequestError",
    "InvalidResponseError",
    "LabelScore",
    "MaskCandidate",
    "Match",
    "ModelInfo",
    "ModelLeftOutError",
    "NotReadyError",
    "OverloadedError",
    "ProblemError",
    "RequestTimeoutError",
    "Span",
    "Token",
    "TooLargeError",
    "UnauthorizedError",
    "UnknownModelError",
    "UnreachableError",
]
