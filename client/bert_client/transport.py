"""One request: its URL, headers and body, what its answer says, and when it is sent again. No sockets here."""

import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np

from bert_client.calls import Reply
from bert_client.errors import (
    BertError,
    InvalidResponseError,
    RequestTimeoutError,
    UnreachableError,
    problem_of,
)

URL_VARIABLE = "BERT_URL"
"""Environment variable with the service's address, for clients that are not given one."""
KEY_VARIABLE = "BERT_API_KEY"
"""Environment variable with the API key, for clients that are not given one."""
CONNECT_S = 5.0
"""Longest wait for a connection."""
GRACE_S = 0.5
"""Time for the service's 504 to arrive after the deadline that it was given."""
PROBE_S = 5.0
"""Time for a question about the service's health."""
POLL_S = 0.2
"""Wait between two questions about the service's health."""
MAX_TIMEOUT_S = 1_000_000
"""Largest `timeout`, 11 days; sockets take no number of seconds."""
MIN_WAIT_S = 0.1
"""Shortest wait where the service says how long to wait."""
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 8.0


@dataclass
class Attempts:
    """Attempts at one request, and the wait before each.

    A service that says when to come back (Retry-After) is asked then, until the time is over: it is there, and starts or is
    busy. Any other failure counts as a retry, after 0.5, 1, 2, 4 and then 8 s, less up to half. With `max_retries` 0 there
    is one attempt in either case.
    """

    timeout_s: float
    max_retries: int
    sent: int = 0
    failed: int = 0
    """Attempts that count as retries."""
    started: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds left of `timeout_s`."""
        return self.started + self.timeout_s - time.monotonic()

    def wait_s(self, error: BertError) -> float:
        """Return how long to wait before the next attempt; raises `error` where there is none."""
        self.sent += 1
        error.attempts = self.sent
        if not error.retry_after:  # a wait of 0 s says nothing: it counts, or it would be sent without end
            self.failed += 1
        if not error.retryable or not self.max_retries or self.failed > self.max_retries:
            raise error
        wait_s: float = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.failed - 1)) * random.uniform(0.5, 1)
        if error.retry_after is not None:  # Never earlier; and not all clients at once.
            wait_s = max(error.retry_after, MIN_WAIT_S) + random.uniform(0, 0.25) * min(error.retry_after, 1)
        if wait_s >= self.left_s:
            raise error
        return wait_s


@dataclass(frozen=True)
class RequestSettings:
    """Settings that every request of a client shares."""

    base_url: str
    headers: Mapping[str, str] = field(repr=False)  # they hold the API key
    timeout_s: float
    max_retries: int
    batch_size: int

    def attempts(self, timeout_s: float | None) -> Attempts:
        """Start the attempts of one request."""
        return Attempts(self.timeout_s if timeout_s is None else seconds(timeout_s), self.max_retries)

    def request(self, method: str, path: str, body: object, attempts: Attempts) -> dict[str, Any]:
        """Return the arguments of httpx2's `request`."""
        left_s = max(attempts.left_s, 0.001)
        headers = {**self.headers, "X-Timeout-Ms": str(max(1, int(left_s * 1000)))}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": method,
            "url": self.base_url + path,
            "content": None if body is None else to_json(body),
            "headers": headers,
            "timeout": httpx2.Timeout(left_s + GRACE_S, connect=min(left_s, CONNECT_S)),
        }


def request_settings(
    base_url: str | None, api_key: str | None, timeout: float, max_retries: int, batch_size: int
) -> RequestSettings:
    """Check a client's arguments; what is None comes from the environment. Raises ValueError and TypeError."""
    url, url_name = argument("base_url", base_url, URL_VARIABLE)
    key, key_name = argument("api_key", api_key, KEY_VARIABLE)
    if not url:
        raise ValueError(
            f"no service is named: pass base_url, such as 'http://localhost:8000', or set the environment variable "
            f"{URL_VARIABLE}"
        )
    check_url(url, url_name)
    if max_retries < 0 or batch_size < 1:
        raise ValueError("max_retries must be at least 0 and batch_size at least 1")
    headers = {"User-Agent": "bert-client", "Accept": "application/json"}
    if key:
        if not (key.isascii() and key.isprintable() and key.strip() == key):
            raise ValueError(f"{key_name} must be printable ASCII, without a space or line break at its ends")
        headers["Authorization"] = f"Bearer {key}"
    return RequestSettings(url.rstrip("/"), headers, seconds(timeout), max_retries, batch_size)


def argument(name: str, value: str | None, variable: str) -> tuple[str, str]:
    """Return an argument, or where it is None its environment variable, and the name of the one that counts."""
    if value is None:
        return os.environ.get(variable, ""), variable
    if not isinstance(value, str):  # the value may be a key: it is not shown
        raise TypeError(f"{name} must be a string, not a value of type {type(value).__name__}")
    return value, name


def check_url(base_url: str, name: str) -> None:
    """Raise ValueError for what cannot be the beginning of a URL; `name` says where it comes from."""
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"{name} must begin with http:// or https://, not {base_url!r}")
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"{name} {base_url!r} is no URL: {error}") from None
    if not url.host or (url.port or 0) > 65_535:
        raise ValueError(f"{name} must have a host, and a port of at most 65535, not {base_url!r}")
    if "?" in base_url or "#" in base_url:
        raise ValueError(f"{name} must not have a query (?) or a fragment (#): {base_url!r}")


def seconds(timeout: float) -> float:
    """Check a timeout; raises ValueError."""
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout must be over 0 and at most {MAX_TIMEOUT_S} s, not {timeout}")
    return float(timeout)


def query(model: str | None) -> str:
    """Return the query of a question about one model; half of a surrogate pair, which no name has, is escaped."""
    if model is None:
        return ""
    return f"?{httpx2.QueryParams({'model': model.encode('utf-8', 'backslashreplace').decode()})}"


def to_json(body: object) -> bytes:
    """Return JSON as UTF-8; half of a surrogate pair is escaped, so that the service can name its field."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=plain_number).encode()
    except UnicodeEncodeError:
        return json.dumps(body, default=plain_number).encode()


def plain_number(value: object) -> object:
    """Return Python's number for one of numpy; raises TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON: {value!r}")


def error_of(error: httpx2.RequestError, url: str) -> BertError:
    """Return the client's exception for one of httpx2."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx2.ConnectTimeout):
        return UnreachableError(f"no connection to {url}: {reason}")
    if isinstance(error, httpx2.TimeoutException):
        return RequestTimeoutError(f"no answer from {url} in time: {reason}")
    raised = UnreachableError(f"no answer from {url}: {reason}")
    if not isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError) or "CERTIFICATE" in reason:
        raised.retryable = False  # a URL, a proxy or a certificate that cannot be used
    return raised


def read_reply(response: httpx2.Response) -> Reply:
    """Return the content of a 200; raises the exception of another status, and InvalidResponseError."""
    if not response.is_success:
        raise problem_of(response)
    try:
        return Reply(json.loads(response.content), response.headers.get("x-request-id", ""))
    except (ValueError, RecursionError):
        kind = response.headers.get("content-type", "no content type")
        raise InvalidResponseError(
            f"{response.url} answered {response.status_code} without JSON ({kind})"
        ) from None
