"""Every exception of the client.

BertError
├── ProblemError               the service, or a proxy before it, answered with an error
│   ├── InvalidRequestError        400, 415, 422: correct the request; `errors` names the fields
│   ├── UnauthorizedError          401, 403: the API key is missing or wrong
│   ├── UnknownModelError          404: no model of that name, or none for the task
│   ├── TooLargeError              413: the body or one text is over the service's limits
│   ├── OverloadedError            429: too much waits; `retry_after` says when to try again
│   ├── NotReadyError              502, 503: starting, stopping, or away
│   │   └── ModelLeftOutError          the model could not be loaded; trying again does not help
│   └── DeadlineExceededError      504: the service had no time left for it
├── UnreachableError           no answer: refused, reset, unknown host (a ConnectionError)
├── RequestTimeoutError        no answer within `timeout` (a TimeoutError)
└── InvalidResponseError       a 200 that is not bert-serve's
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

MAX_SHOWN = 200
"""Characters shown of a body that is not the service's."""


class BertError(Exception):
    """The root of the client's exceptions."""

    retryable = False
    """True where the same request may succeed a moment later."""
    retry_after: float | None = None
    """Seconds that the service asked to wait, or None."""
    attempts = 1
    """Times that the request was sent."""
    items: range | None = None
    """Places in your list of the texts that the failed request held; None where there was no list."""
    results: list[Any] | None = None
    """Complete result of each text of a list, None where there is none yet."""

    def __str__(self) -> str:
        tried = f" (tried {self.attempts} times)" if self.attempts > 1 else ""
        return super().__str__() + tried


class UnreachableError(BertError, ConnectionError):
    """No answer came: the connection was refused or broken, or the host is unknown."""

    retryable = True


class RequestTimeoutError(BertError, TimeoutError):
    """No answer came within `timeout`."""


class InvalidResponseError(BertError):
    """The answer is not bert-serve's, although its status is 200: probably another server listens there."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """A fault in one field of a request, or a remark on it."""

    field: str
    """Name of the field; one text of your list reads like text[3]."""
    message: str


def renumbered(text: str, starts: Mapping[str, int], place: Callable[[str, int], int]) -> str:
    """Return a text that names fields of one request, such as text[3], with places in the caller's lists."""

    def moved(found: re.Match[str]) -> str:
        return f"{found[1]}[{place(found[1], int(found[2]) + starts[found[1]])}]"

    names = "|".join(map(re.escape, starts))
    return re.sub(rf"\b({names})\[(\d+)\]", moved, text) if names else text


class ProblemError(BertError):
    """The service, or a proxy before it, answered with an error."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        type: str = "about:blank",
        title: str = "",
        request_id: str | None = None,
        errors: tuple[FieldError, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        """`type` is the fixed name for programs, such as urn:bert-serve:queue-full; `detail` is for people."""
        super().__init__(status, detail)  # with these a pickled error is made again; the rest is its state
        self.status, self.detail, self.type, self.title = status, detail, type, title
        self.request_id, self.errors, self.retry_after = request_id, errors, retry_after

    def __str__(self) -> str:
        tried = f", tried {self.attempts} times" if self.attempts > 1 else ""
        known = f", request id {self.request_id}" if self.request_id else ""
        return f"{self.detail} ({self.status}{known}{tried})"

    def move(self, starts: Mapping[str, int], place: Callable[[str, int], int]) -> None:
        """Count the places that fields and `detail` name in the caller's lists, not in those of one request."""
        self.detail = renumbered(self.detail, starts, place)
        self.errors = tuple(
            FieldError(renumbered(each.field, starts, place), each.message) for each in self.errors
        )

    def of_fields(self, errors: Sequence[FieldError]) -> "ProblemError":
        """Return the same error about some of its fields."""
        detail = "; ".join(f"{each.field}: {each.message}" for each in errors)
        return type(self)(
            self.status,
            detail,
            type=self.type,
            title=self.title,
            request_id=self.request_id,
            errors=tuple(errors),
        )


class InvalidRequestError(ProblemError, ValueError):
    """The request breaks a rule; `errors` names the fields."""


class UnauthorizedError(ProblemError):
    """The API key is missing or wrong."""


class UnknownModelError(ProblemError):
    """No model of that name is loaded, or none for the task; `detail` lists those that are."""


class TooLargeError(ProblemError):
    """The body, or one text in it, is over the service's limits."""


class OverloadedError(ProblemError):
    """Too much waits at the service; `retry_after` says when to try again."""

    retryable = True


class NotReadyError(ProblemError):
    """The service is starting, stopping or away."""

    retryable = True


class ModelLeftOutError(NotReadyError):
    """The model could not be loaded; `GET /models` and the service's log say why."""

    retryable = False


class DeadlineExceededError(ProblemError):
    """The service had no answer within the request's time."""


BY_TYPE: dict[str, type[ProblemError]] = {
    "urn:bert-serve:unknown-model": UnknownModelError,
    "urn:bert-serve:model-left-out": ModelLeftOutError,
}
BY_STATUS: dict[int, type[ProblemError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: UnauthorizedError,
    413: TooLargeError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: OverloadedError,
    502: NotReadyError,
    503: NotReadyError,
    504: DeadlineExceededError,
}


def problem_of(response: httpx2.Response) -> ProblemError:
    """Return the exception of a response that is not a success, whoever wrote it."""
    status, wait = response.status_code, retry_after_s(response.headers.get("retry-after"))
    request_id = response.headers.get("x-request-id")
    try:
        body = json.loads(response.content)
        kind = BY_TYPE.get(body["type"]) or BY_STATUS.get(status, ProblemError)
        return kind(
            status,
            body["detail"],
            type=body["type"],
            title=body.get("title", ""),
            request_id=body.get("request_id", request_id),
            errors=tuple(FieldError(each["field"], each["message"]) for each in body.get("errors", ())),
            retry_after=wait,
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shown = " ".join(re.sub(r"<[^>]*>", " ", response.text).split())[:MAX_SHOWN]
        title = response.reason_phrase
        detail = f"{response.url} answered {status} {title}, and not with bert-serve's JSON: {shown!r}"
        kind = BY_STATUS.get(status, ProblemError)
        return kind(status, detail, title=title, request_id=request_id, retry_after=wait)


def retry_after_s(sent: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or an HTTP date. None without one that can be read."""
    if not sent:
        return None
    try:
        return max(0.0, float(sent))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(sent) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
