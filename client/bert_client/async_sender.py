"""Sends calls from asyncio, some requests of a long list at once: the part of `AsyncClient` that talks HTTP."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping
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


async def each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the items of an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def chunks(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[tuple[int, list[T]]]:
    """Yield lists of `size` items, and the place of the first."""
    first, chunk = 0, list[T]()
    async for item in each(items):
        chunk.append(item)
        if len(chunk) == size:
            yield first, chunk
            first, chunk = first + size, []
    if chunk:
        yield first, chunk


def home() -> object:
    """Return what connections belong to."""
    return os.getpid(), asyncio.get_running_loop()


class AsyncSender:
    """Connections to a service, retries, and lists in parts."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 5,
        batch_size: int = 128,
        max_concurrency: int = 4,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """Make a client of the service at `base_url`, such as http://localhost:8000.

        Without `base_url` or `api_key` the environment variables BERT_URL and BERT_API_KEY count.
        Each request has `timeout` seconds with all its retries: at most `max_retries` after failures, any number where
        the service says when to come back (429, 503 with Retry-After), none at all with `max_retries=0`. Lists are sent
        in parts of at most `batch_size` texts, pairs and candidates included, `max_concurrency` at once.
        `http_client` brings proxies or certificates of your own; you close it.
        Raises ValueError or TypeError for an argument that cannot be used.
        """
        self._wiring: Wiring = wiring(base_url, api_key, timeout, max_retries, batch_size)
        self._concurrency = max(1, max_concurrency)
        self._connections = Connections(httpx2.AsyncClient, http_client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if http := self._connections.close(home()):
            await http.aclose()

    async def models(self) -> list[ModelInfo]:
        """List the loaded models."""
        return [read(ModelInfo, each) for each in (await self._send("GET", "/models", None)).json["models"]]

    async def ready(self, model: str | None = None) -> bool:
        """Tell whether the service, or one model, can answer now; False too where no service is reached.

        Raises UnknownModelError.
        """
        return await self._is_up("/health/ready", model, PROBE_S)

    async def live(self) -> bool:
        """Tell whether the service's process runs, whatever the state of its models."""
        return await self._is_up("/health/live", None, PROBE_S)

    async def wait_until_ready(self, model: str | None = None, *, timeout: float = 60.0) -> None:
        """Wait until the service, or one model, can answer; raises RequestTimeoutError after `timeout` seconds."""
        end = time.monotonic() + timeout
        left_s = timeout
        while not await self._is_up("/health/ready", model, min(PROBE_S, max(left_s, POLL_S))):
            left_s = end - time.monotonic() - POLL_S
            if not left_s > 0:
                raise RequestTimeoutError(f"{self._wiring.base_url} was not ready after {timeout:g} s")
            await asyncio.sleep(POLL_S)

    async def _is_up(self, path: str, model: str | None, timeout_s: float) -> bool:
        probe = self._wiring.attempts(timeout_s)
        try:
            await self._request(self._wiring.request("GET", path + query(model), None, probe))
        except (NotReadyError, UnreachableError, RequestTimeoutError):
            return False
        return True

    async def _call(self, call: Call[Any]) -> Any:
        return call.output(await self._run(call))

    async def _run(self, call: Call[Any]) -> list[Any]:
        """Send a call in as many requests as it takes; returns the results of its rows."""
        results: list[Any] = [None] * call.rows
        parts = each(call.parts(self._wiring.batch_size))
        try:
            async for _ in self._in_order(self._run_part(call, part, results) async for part in parts):
                pass
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

    async def _in_order(self, jobs: AsyncIterator[Coroutine[Any, Any, T]]) -> AsyncGenerator[T]:
        """Yield the results of jobs in their order, while at most `max_concurrency` run; cancels the rest after an error."""
        running = deque[asyncio.Task[T]]()
        try:
            async for job in jobs:
                running.append(asyncio.create_task(job))
                if len(running) == self._concurrency:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send(self, method: str, path: str, body: object, timeout_s: float | None = None) -> Reply:
        """Send a request, again and again as Attempts says."""
        attempts = self._wiring.attempts(timeout_s)
        while True:
            try:
                return await self._request(self._wiring.request(method, path, body, attempts))
            except BertError as error:
                wait_s = attempts.wait_s(error)
            await asyncio.sleep(wait_s)

    async def _request(self, arguments: Mapping[str, Any]) -> Reply:
        http = self._connections.use(home())
        try:
            async with asyncio.timeout(arguments["timeout"].read):
                return read_reply(await http.request(**arguments))
        except TimeoutError:
            raise RequestTimeoutError(f"no answer from {self._wiring.base_url} in time") from None
        except httpx2.RequestError as error:
            raise error_of(error, self._wiring.base_url) from error
