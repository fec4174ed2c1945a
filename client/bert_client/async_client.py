"""The client for programs on asyncio."""

import asyncio
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx2

from bert_client import tasks
from bert_client.calls import ChoiceLists, OnError, Reply, Texts, Vector
from bert_client.connections import Connections
from bert_client.core import Core
from bert_client.errors import RequestTimeoutError
from bert_client.options import (
    ClassifyOptions,
    EmbedOptions,
    FillMaskOptions,
    MultipleChoiceOptions,
    NerOptions,
    Options,
    QaOptions,
    RerankOptions,
    SimilarityOptions,
    SparseOptions,
)
from bert_client.results import (
    Answer,
    Choice,
    Classification,
    Entity,
    FilledMask,
    Match,
    ModelInfo,
    SparseVector,
    Token,
)
from bert_client.transport import error_of, read_reply, request_settings

E = TypeVar("E")
T = TypeVar("T")
Items = Iterable[T] | AsyncIterable[T]


async def each(items: Items[T]) -> AsyncIterator[T]:
    """Yield the items of an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def chunks(items: Items[T], size: int) -> AsyncIterator[tuple[int, list[T]]]:
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


class AsyncClient(Core):
    """A service, asked from asyncio.

    One string gives one result, a list a list of results in its order. Options are those of docs/api.md.
    """

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
        self._settings = request_settings(base_url, api_key, timeout, max_retries, batch_size)
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
        return await self._models()

    async def ready(self, model: str | None = None) -> bool:
        """Tell whether the service, or one model, can answer now; False too where no service is reached.

        Raises UnknownModelError.
        """
        return await self._is_up("/health/ready", model)

    async def live(self) -> bool:
        """Tell whether the service's process runs, whatever the state of its models."""
        return await self._is_up("/health/live")

    async def wait_until_ready(self, model: str | None = None, *, timeout: float = 60.0) -> None:
        """Wait until the service, or one model, can answer; raises RequestTimeoutError after `timeout` seconds."""
        await self._wait_until_ready(model, timeout)

    @overload
    async def classify(
        self, text: str, text_pair: str | None = None, **options: Unpack[ClassifyOptions]
    ) -> Classification: ...

    @overload
    async def classify(
        self, text: Texts, text_pair: str | Texts | None = None, **options: Unpack[ClassifyOptions]
    ) -> list[Classification]: ...

    @overload
    async def classify(
        self, text: str, text_pair: Texts, **options: Unpack[ClassifyOptions]
    ) -> list[Classification]: ...

    async def classify(
        self, text: str | Texts, text_pair: str | Texts | None = None, **options: Unpack[ClassifyOptions]
    ) -> Any:
        """Return the label of each text, or of each pair of texts, with its scores."""
        return await self._call(tasks.classify(options, text, text_pair))

    @overload
    async def ner(self, text: str, **options: Unpack[NerOptions]) -> list[Entity]: ...

    @overload
    async def ner(self, text: Texts, **options: Unpack[NerOptions]) -> list[list[Entity]]: ...

    async def ner(self, text: str | Texts, **options: Unpack[NerOptions]) -> Any:
        """Return the entities of each text, in its order; `text[start:end]` is the entity."""
        return await self._call(tasks.ner(options, text))

    @overload
    async def qa(self, question: str, context: str, **options: Unpack[QaOptions]) -> Answer: ...

    @overload
    async def qa(
        self, question: Texts, context: str | Texts, **options: Unpack[QaOptions]
    ) -> list[Answer]: ...

    @overload
    async def qa(self, question: str, context: Texts, **options: Unpack[QaOptions]) -> list[Answer]: ...

    async def qa(self, question: str | Texts, context: str | Texts, **options: Unpack[QaOptions]) -> Any:
        """Return the answer to each question in its context; a string goes with each item of a list."""
        return await self._call(tasks.qa(options, question, context))

    async def embed(self, text: str | Texts, **options: Unpack[EmbedOptions]) -> Vector:
        """Return the vector of a text, float32 (D,), or of each text of a list, (N, D)."""
        result: Vector = await self._call(tasks.embed(options, text))
        return result

    @overload
    async def embed_sparse(self, text: str, **options: Unpack[SparseOptions]) -> SparseVector: ...

    @overload
    async def embed_sparse(self, text: Texts, **options: Unpack[SparseOptions]) -> list[SparseVector]: ...

    async def embed_sparse(self, text: str | Texts, **options: Unpack[SparseOptions]) -> Any:
        """Return the sparse vector of a text, or of each text of a list."""
        return await self._call(tasks.embed_sparse(options, text))

    @overload
    async def similarity(
        self, text: str, candidates: Texts, **options: Unpack[SimilarityOptions]
    ) -> list[Match]: ...

    @overload
    async def similarity(
        self, text: Texts, candidates: Texts, **options: Unpack[SimilarityOptions]
    ) -> list[list[Match]]: ...

    async def similarity(
        self, text: str | Texts, candidates: Texts, **options: Unpack[SimilarityOptions]
    ) -> Any:
        """Return the candidates for each text, closest in meaning first."""
        return await self._call(tasks.similarity(options, text, candidates))

    async def rerank(self, query: str, candidates: Texts, **options: Unpack[RerankOptions]) -> list[Match]:
        """Return the candidates, best answer to the query first."""
        result: list[Match] = await self._call(tasks.rerank(options, query, candidates))
        return result

    @overload
    async def multiple_choice(
        self, prompt: str, choices: Texts, **options: Unpack[MultipleChoiceOptions]
    ) -> Choice: ...

    @overload
    async def multiple_choice(
        self, prompt: Texts, choices: Texts | ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> list[Choice]: ...

    @overload
    async def multiple_choice(
        self, prompt: str, choices: ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> list[Choice]: ...

    async def multiple_choice(
        self, prompt: str | Texts, choices: Texts | ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> Any:
        """Return the best of the choices after each prompt; several prompts have one list of choices, or one each."""
        return await self._call(tasks.multiple_choice(options, prompt, choices))

    @overload
    async def fill_mask(self, text: str, **options: Unpack[FillMaskOptions]) -> list[FilledMask]: ...

    @overload
    async def fill_mask(self, text: Texts, **options: Unpack[FillMaskOptions]) -> list[list[FilledMask]]: ...

    async def fill_mask(self, text: str | Texts, **options: Unpack[FillMaskOptions]) -> Any:
        """Return the masks of each text, and the candidates for each."""
        return await self._call(tasks.fill_mask(options, text))

    @overload
    async def tokenize(self, text: str, **options: Unpack[Options]) -> list[Token]: ...

    @overload
    async def tokenize(self, text: Texts, **options: Unpack[Options]) -> list[list[Token]]: ...

    async def tokenize(self, text: str | Texts, **options: Unpack[Options]) -> Any:
        """Return the tokens that the model reads of each text."""
        return await self._call(tasks.tokenize(options, text))

    @overload
    def stream(
        self,
        task: Literal["classify"],
        items: Items[str] | Items[tuple[str, str]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[ClassifyOptions],
    ) -> AsyncIterator[Classification | E]: ...

    @overload
    def stream(
        self,
        task: Literal["ner"],
        items: Items[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[NerOptions],
    ) -> AsyncIterator[list[Entity] | E]: ...

    @overload
    def stream(
        self,
        task: Literal["qa"],
        items: Items[tuple[str, str]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[QaOptions],
    ) -> AsyncIterator[Answer | E]: ...

    @overload
    def stream(
        self,
        task: Literal["embed"],
        items: Items[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[EmbedOptions],
    ) -> AsyncIterator[Vector | E]: ...

    @overload
    def stream(
        self,
        task: Literal["embed_sparse"],
        items: Items[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[SparseOptions],
    ) -> AsyncIterator[SparseVector | E]: ...

    @overload
    def stream(
        self,
        task: Literal["multiple_choice"],
        items: Items[tuple[str, list[str]]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[MultipleChoiceOptions],
    ) -> AsyncIterator[Choice | E]: ...

    @overload
    def stream(
        self,
        task: Literal["fill_mask"],
        items: Items[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[FillMaskOptions],
    ) -> AsyncIterator[list[FilledMask] | E]: ...

    @overload
    def stream(
        self,
        task: Literal["tokenize"],
        items: Items[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[Options],
    ) -> AsyncIterator[list[Token] | E]: ...

    async def stream(
        self, task: str, items: Items[Any], *, on_error: OnError[Any] | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Yield a result for each item, in order, and hold the texts of `max_concurrency` requests at a time.

        An item is a text, or a tuple: (text, text_pair), (question, context), (prompt, choices). `on_error` is called with
        the place and the error of each item that the service refuses, and its value is yielded instead; without it the
        first such error is raised.
        """
        parts = chunks(items, self._settings.batch_size)
        jobs = (
            self._run_each(tasks.stream_call(task, options, first, chunk), on_error)
            async for first, chunk in parts
        )
        async with aclosing(self._in_order(jobs)) as finished:
            async for results in finished:
                for result in results:
                    yield result

    async def _finish(self, jobs: Iterator[Coroutine[Any, Any, None]]) -> None:
        async for _ in self._in_order(each(jobs)):
            pass

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

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _request(self, arguments: Mapping[str, Any]) -> Reply:
        http = self._connections.use(home())
        try:
            async with asyncio.timeout(arguments["timeout"].read):
                return read_reply(await http.request(**arguments))
        except TimeoutError:
            raise RequestTimeoutError(f"no answer from {self._settings.base_url} in time") from None
        except httpx2.RequestError as error:
            raise error_of(error, self._settings.base_url) from error
