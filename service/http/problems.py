"""Turn errors into HTTP responses: application/problem+json (RFC 9457)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import pydantic
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bert.errors import (
    BertError,
    DeadlineExceededError,
    FieldError,
    InputError,
    InvalidRequestError,
    LoadError,
    ModelLeftOutError,
    NotReadyError,
    OutOfMemoryError,
    QueueFullError,
    RateLimitedError,
    RequestTooLargeError,
    UnknownModelError,
    displayed,
    shown,
)

MEDIA_TYPE = "application/problem+json"
TYPE_RULES = {
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
"""Type of pydantic's error → what the field takes."""
CLIENT_GONE = 499
"""Status in metrics and logs, as in nginx, of a request whose client disconnected before the response."""


class Problem(pydantic.BaseModel):
    """An error, application/problem+json (RFC 9457)."""

    type: str = pydantic.Field(description="Fixed name of the kind of problem, for programs.")
    title: str
    status: int
    detail: str = pydantic.Field(description="What happened and what to do, for people.")
    request_id: str
    errors: list[FieldError] = pydantic.Field(default=[], description="Problems of single fields, if any.")


class ProblemError(BertError):
    """An error with everything that its response says."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        """`code` names the kind of problem; `reason` is the label of bert_requests_rejected_total, if it is counted."""
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.errors, self.headers, self.reason = tuple(errors), dict(headers or {}), reason


ErrorWriter = Callable[[ProblemError, str], Response]
"""Makes the response of a problem and a request id."""
ERROR_WRITER = "error_writer"
"""Key in a request's state of the ErrorWriter that its body asks for, where its path alone does not tell."""


@dataclass(slots=True)
class ClientGoneError(Exception):
    """The client closed the connection; nobody reads a response."""

    note: str = field(default="the client closed the connection")


def problem_of(error: Exception) -> ProblemError:
    """Turn any exception into the problem that the client reads; messages of unexpected ones are not shown."""
    match error:
        case ProblemError():
            return error
        case InvalidRequestError():
            return ProblemError(422, "invalid-request", str(error), errors=error.errors)
        case RequestTooLargeError():
            return ProblemError(413, "request-too-large", str(error), reason="too_large")
        case UnknownModelError():
            return ProblemError(404, "unknown-model", str(error), errors=[FieldError("model", str(error))])
        case ModelLeftOutError():
            return ProblemError(503, "model-left-out", str(error), reason="not_ready")
        case LoadError():
            return ProblemError(409, "load-failed", str(error))
        case QueueFullError():
            seconds = max(1, math.ceil(error.retry_after_s))
            detail = f"{error}; try again in {seconds} s"
            return ProblemError(
                429, "queue-full", detail, headers={"Retry-After": str(seconds)}, reason="queue_full"
            )
        case RateLimitedError():
            seconds = max(1, math.ceil(error.retry_after_s))
            headers = {"Retry-After": str(seconds), **rate_headers(error.limit, 0, error.retry_after_s)}
            detail = f"{error}; try again in {seconds} s"
            return ProblemError(429, "rate-limited", detail, headers=headers, reason="rate_limited")
        case DeadlineExceededError():
            return ProblemError(504, "deadline-exceeded", str(error), reason="deadline")
        case NotReadyError():
            return ProblemError(
                503, "not-ready", str(error), headers={"Retry-After": "1"}, reason="not_ready"
            )
        case OutOfMemoryError():
            return ProblemError(503, "out-of-memory", str(error), reason="out_of_memory")
        case InputError():
            return ProblemError(422, "invalid-request", str(error))
        case HTTPException():
            return ProblemError(error.status_code, "http", _http_detail(error), headers=error.headers)
        case _:
            return ProblemError(500, "internal", "the service failed on this request; its log says why")


def rate_headers(limit: int, remaining: int, reset_s: float) -> dict[str, str]:
    """Return the headers of a limit, as other servers send them (draft-ietf-httpapi-ratelimit-headers-07)."""
    return {
        "RateLimit-Limit": str(limit),
        "RateLimit-Remaining": str(remaining),
        "RateLimit-Reset": str(math.ceil(reset_s)),
    }


def _http_detail(error: HTTPException) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "there is no such path; /docs lists what there is"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"this path takes {(error.headers or {}).get('Allow', 'other methods')}"
    return str(error.detail)


def problem_response(problem: ProblemError, request_id: str) -> Response:
    """Return the response of a problem."""
    body = Problem(
        type=f"urn:bert-serve:{problem.code}",
        title=title(problem.status),
        status=problem.status,
        detail=problem.detail,
        request_id=request_id,
        errors=list(problem.errors),
    )
    content = body.model_dump_json(exclude_defaults=True)
    return Response(content, problem.status, problem.headers, MEDIA_TYPE)


def title(status: int) -> str:
    """Return the phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def field_errors(error: pydantic.ValidationError) -> list[FieldError]:
    """Return one error for each invalid field, without the text that was sent.

    For a field that takes a string or a list, pydantic reports errors of both.
    """
    found = dict[str, FieldError]()
    for item in error.errors(include_url=False, include_context=False):
        name = str(item["loc"][0])
        is_string_or_list = len(item["loc"]) > 1
        message = "must be a string or a list of strings" if is_string_or_list else field_message(item)
        found.setdefault(name, FieldError(name, message))
    return list(found.values())


def field_message(item: ErrorDetails) -> str:
    """Return the rule that a field breaks, and its value where the rule is about its type or its choices."""
    kind, message, value = item["type"], item["msg"], item["input"]
    if kind == "missing":
        return "is required"
    if kind in ("literal_error", "enum"):
        given = repr(displayed(value)) if isinstance(value, str) else shown(value)
        return f"must be {message.removeprefix('Input should be ')}, not {given}"
    if kind in TYPE_RULES:
        return f"must be {TYPE_RULES[kind]}, not {shown(value)}"
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
