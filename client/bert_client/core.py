"""The flow of both clients: lists in parts, retries, health. Each client adds only how a request is sent.

The methods are coroutines. `AsyncClient` awaits them. What `Client` fills in blocks and never suspends, so `result_of`
gets a coroutine's result in one step, without an event loop.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

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
from bert_client.transport import POLL_S, PROBE_S, RequestSettings, query

T = TypeVar("T")


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a coroutine of the blocking client suspended")


class Core(ABC):
    """Calls of a service, without connections."""

    _settings: RequestSettings

    @abstractmethod
    async def _request(self, arguments: Mapping[str, Any]) -> Reply:
        """Send a request once, with the arguments of httpx2's `request`; raises BertError."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    async def _finish(self, jobs: Iterator[Coroutine[Any, Any, None]]) -> None:
        """Run jobs to their end, in turn or some at once; raises the first error, after which no other begins."""

    async def _models(self) -> list[ModelInfo]:
        reply = await self._send("GET", "/models", None)
        return [read(ModelInfo, each) for each in reply.json["models"]]

    async def _is_up(self, path: str, model: str | None = None, timeout_s: float = PROBE_S) -> bool:
        probe = self._settings.attempts(timeout_s)
        try:
            await self._request(self._settings.request("GET", path + query(model), None, probe))
        except (NotReadyError, UnreachableError, RequestTimeoutError):
            return False
        return True

    async def _wait_until_ready(self, model: str | None, timeout: float) -> None:
        end = time.monotonic() + timeout
        left_s = timeout
        while not await self._is_up("/health/ready", model, min(PROBE_S, max(left_s, POLL_S))):
            left_s = end - time.monotonic() - POLL_S
            if not left_s > 0:
                raise RequestTimeoutError(f"{self._settings.base_url} was not ready after {timeout:g} s")
            await self._sleep(POLL_S)

    async def _call(self, call: Call[Any]) -> Any:
        return call.output(await self._run(call))

    async def _run(self, call: Call[Any]) -> list[Any]:
        """Send a call in as many requests as it takes; returns the results of its rows."""
        results: list[Any] = [None] * call.rows
        try:
            parts = call.parts(self._settings.batch_size)
            await self._finish(self._run_part(call, part, results) for part in parts)
        except BertError as error:
            error.results = None if call.one else call.done(results)
            raise
        return results

    async def _run_part(self, call: Call[Any], part: Part, results: list[Any]) -> None:
        """Send a part, in halves where it is too large for one request."""
        try:
            call.add(part, await self._send("POST", call.path, call.body(part), call.timeout), results)
        except BertError as error:
            smaller = halves(part) if isinstance(error, TooLargeError) else None
            if smaller is None:
                call.explain(error, part)
                raise
            for half in smaller:
                await self._run_part(call, half, results)

    async def _run_each(self, call: Call[Any], on_error: OnError[Any] | None) -> list[Any]:
        """Return the results of a call's rows, that of `on_error` for each row that the service refuses."""
        results: list[Any] = [None] * call.rows
        left = list(range(call.rows))
        while left:
            refused = dict[int, Any]()
            try:
                found = await self._run(call.select(left))
            except ProblemError as error:
                if on_error is None:
                    raise
                found = error.results or [None] * len(left)
                refused = {row: on_error(call.place(row), own) for row, own in call.refused(error).items()}
            for row, result in zip(left, found, strict=True):
                results[row] = refused.get(row, result)
            left = [row for row in left if results[row] is None and row not in refused]
        return results

    async def _send(self, method: str, path: str, body: object, timeout_s: float | None = None) -> Reply:
        """Send a request, again and again as Attempts says."""
        attempts = self._settings.attempts(timeout_s)
        while True:
            try:
                return await self._request(self._settings.request(method, path, body, attempts))
            except BertError as error:
                wait_s = attempts.wait_s(error)
            await self._sleep(wait_s)
