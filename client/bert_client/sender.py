"""Sends calls and waits for each answer: the part of `Client` that talks HTTP."""

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import httpx2

from bert_client.calls import Call, OnError, Part, Reply, halves
from bert_client.connections import Connections
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


class Bounded(httpx2.SyncByteStream):
    """The body of a response, cut off at a time of `time.monotonic()`: a read timeout alone restarts with every byte."""

    def __init__(self, stream: Any, end: float) -> None:
        self.stream, self.end = stream, end

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.stream:
            if time.monotonic() > self.end:
                raise httpx2.ReadTimeout("the answer is not complete")
            yield chunk

    def close(self) -> None:
        """Close the connection, or give it back."""
        self.stream.close()


class Sender:
    """Connections to a service, retries, and lists in parts."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 5,
        batch_size: int = 128,
        http_client: httpx2.Client | None = None,
    ) -> None:
        """Make a client of the service at `base_url`, such as http://localhost:8000.

        Without `base_url` or `api_key` the environment variables BERT_URL and BERT_API_KEY count.
        Each request has `timeout` seconds with all its retries: at most `max_retries` after failures, any number where
        the service says when to come back (429, 503 with Retry-After), none at all with `max_retries=0`. Lists are sent
        in parts of at most `batch_size` texts, pairs and candidates included.
        `http_client` brings proxies or certificates of your own; you close it.
        Raises ValueError or TypeError for an argument that cannot be used.
        """
        self._wiring: Wiring = wiring(base_url, api_key, timeout, max_retries, batch_size)
        self._connections = Connections(httpx2.Client, http_client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if http := self._connections.close(os.getpid()):
            http.close()

    def models(self) -> list[ModelInfo]:
        """List the loaded models."""
        return [read(ModelInfo, each) for each in self._send("GET", "/models", None).json["models"]]

    def ready(self, model: str | None = None) -> bool:
        """Tell whether the service, or one model, can answer now; False too where no service is reached.

        Raises UnknownModelError.
        """
        return self._is_up("/health/ready", model, PROBE_S)

    def live(self) -> bool:
        """Tell whether the service's process runs, whatever the state of its models."""
        return self._is_up("/health/live", None, PROBE_S)

    def wait_until_ready(self, model: str | None = None, *, timeout: float = 60.0) -> None:
        """Wait until the service, or one model, can answer; raises RequestTimeoutError after `timeout` seconds."""
        end = time.monotonic() + timeout
        left_s = timeout
        while not self._is_up("/health/ready", model, min(PROBE_S, max(left_s, POLL_S))):
            left_s = end - time.monotonic() - POLL_S
            if not left_s > 0:
                raise RequestTimeoutError(f"{self._wiring.base_url} was not ready after {timeout:g} s")
            time.sleep(POLL_S)

    def _is_up(self, path: str, model: str | None, timeout_s: float) -> bool:
        probe = self._wiring.attempts(timeout_s)
        try:
            self._request(self._wiring.request("GET", path + query(model), None, probe))
        except (NotReadyError, UnreachableError, RequestTimeoutError):
            return False
        return True

    def _call(self, call: Call[Any]) -> Any:
        return call.output(self._run(call))

    def _run(self, call: Call[Any]) -> list[Any]:
        """Send a call in as many requests as it takes; returns the results of its rows."""
        results: list[Any] = [None] * call.rows
        try:
            for part in call.parts(self._wiring.batch_size):
                self._run_part(call, part, results)
        except BertError as error:
            error.results = None if call.one else call.done(results)
            raise
        return results

    def _run_part(self, call: Call[Any], part: Part, results: list[Any]) -> None:
        """Send a part, in halves where it is too large for one request."""
        try:
            call.add(part, self._send("POST", call.path, call.body(part), call.timeout), results)
        except BertError as error:
            smaller = halves(part) if isinstance(error, TooLargeError) else None
            if smaller is None:
                call.explain(error, part)
                raise
            for half in smaller:
                self._run_part(call, half, results)

    def _run_each(self, call: Call[Any], on_error: OnError[Any] | None) -> list[Any]:
        """Return the results of a call's rows, that of `on_error` for each row that the service refuses."""
        results: list[Any] = [None] * call.rows
        left = list(range(call.rows))
        while left:
            refused = dict[int, Any]()
            try:
                found = self._run(call.select(left))
            except ProblemError as error:
                if on_error is None:
                    raise
                found = error.results or [None] * len(left)
                refused = {row: on_error(call.place(row), own) for row, own in call.refused(error).items()}
            for row, result in zip(left, found, strict=True):
                results[row] = refused.get(row, result)
            left = [row for row in left if results[row] is None and row not in refused]
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
        end = time.monotonic() + arguments["timeout"].read
        try:
            with self._connections.use(os.getpid()).stream(**arguments) as response:
                response.request.extensions["timeout"]["read"] = max(end - time.monotonic(), 0.001)
                response.stream = Bounded(response.stream, end)
                response.read()
                return read_reply(response)
        except httpx2.RequestError as error:
            raise error_of(error, self._wiring.base_url) from error
