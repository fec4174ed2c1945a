"""Sends calls and waits for each answer: the part of `Client` that talks HTTP."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import httpx2

from bert_client.calls import Call, OnError, Part, Reply, halves
from bert_client.errors import (
    BertError,
    NotReadyError,
    ProblemError,
    RequestTimeoutError,
    TooLargeError,
    UnreachableError,
)
from bert_client.results import ModelInfo, read
from bert_client.transport import POLL_S, PROBE_S, Wiring, error_of, query, read_reply, wiring

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[tuple[int, list[T]]]:
    """Yield lists of `size` items, and the place of the first."""
    left, first = iter(items), 0
    while chunk := list(itertools.islice(left, size)):
        yield first, chunk
        first += size


class Sender:
    """Connections to a service, retries, and lists in parts."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 5,
        batch_size: int = 128,
        http_client: httpx2.Client | None = None,
    ) -> None:
        """Make a client of the service at `base_url`, such as http://localhost:8000.

        Each request has `timeout` seconds with all its retries, of which there are at most `max_retries`. Lists are sent
        in parts of at most `batch_size` texts, pairs and candidates included.
        `http_client` brings proxies or certificates of your own; you close it.
        """
        self._wiring: Wiring = wiring(base_url, api_key, timeout, max_retries, batch_size)
        self._http = http_client or httpx2.Client()
        self._owns_http = http_client is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            self._http.close()

    def models(self) -> list[ModelInfo]:
        """List the loaded models."""
        return [read(ModelInfo, each) for each in self._send("GET", "/models", None).json["models"]]

    def ready(self, model: str | None = None) -> bool:
        """Tell whether the service, or one model, can answer now; False too where no service is reached.

        Raises UnknownModelError.
        """
        return self._is_up("/health/ready", model)

    def live(self) -> bool:
        """Tell whether the service's process runs, whatever the state of its models."""
        return self._is_up("/health/live", None)

    def wait_until_ready(self, model: str | None = None, *, timeout: float = 60.0) -> None:
        """Wait until the service, or one model, can answer; raises RequestTimeoutError after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self.ready(model):
            if time.monotonic() > end:
                raise RequestTimeoutError(f"{self._wiring.base_url} was not ready after {timeout:g} s")
            time.sleep(POLL_S)

    def _is_up(self, path: str, model: str | None) -> bool:
        try:
            self._request(
                self._wiring.request("GET", path + query(model), None, self._wiring.attempts(PROBE_S))
            )
        except (NotReadyError, UnreachableError, RequestTimeoutError):
            return False
        return True

    def _call(self, call: Call[Any]) -> Any:
        return call.output(self._run(call))

    def _run(self, call: Call[Any]) -> list[Any]:
        """Send a call in as many requests as it takes; returns the results of its rows."""
        results: list[Any] = [None] * call.rows
        for part in call.parts(self._wiring.batch_size):
            self._run_part(call, part, results)
        return results

    def _run_part(self, call: Call[Any], part: Part, results: list[Any]) -> None:
        """Send a part, in halves where it is too large for one request."""
        try:
            call.add(part, self._send("POST", call.path, call.body(part), call.timeout), results)
        except BertError as error:
            smaller = halves(part) if isinstance(error, TooLargeError) else None
            if smaller is None:
                call.explain(error, part, results)
                raise
            for half in smaller:
                self._run_part(call, half, results)

    def _run_each(self, call: Call[Any], on_error: OnError[Any] | None) -> list[Any]:
        """Return the results of a call's rows, that of `on_error` for each row that the service refuses."""
        results: list[Any] = [None] * call.rows
        left = list(range(call.rows))
        while left:
            try:
                for row, result in zip(left, self._run(call.select(left)), strict=True):
                    results[row] = result
                return results
            except ProblemError as error:
                if on_error is None:
                    raise
                for row, own in call.refused(error).items():
                    results[row] = on_error(call.place(row), own)
                    left.remove(row)
        return results

    def _send(self, method: str, path: str, body: object, timeout_s: float | None = None) -> Reply:
        """Send a request, again and again as Attempts says."""
        attempts = self._wiring.attempts(timeout_s)
        while True:
            try:
                return self._request(self._wiring.request(method, path, body, attempts))
            except BertError as error:
                wait_s = attempts.wait_s(error)
            time.sleep(wait_s)

    def _request(self, arguments: Mapping[str, Any]) -> Reply:
        try:
            return read_reply(self._http.request(**arguments))
        except httpx2.RequestError as error:
            raise error_of(error, self._wiring.base_url) from error
