"""The client for programs that wait for each answer."""

import itertools
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx2

from bert_client import tasks
from bert_client.calls import ChoiceLists, OnError, Reply, Texts, Vector
from bert_client.connections import Bounded, Connections
from bert_client.core import Core, result_of
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


def chunks(items: Iterable[T], size: int) -> Iterator[tuple[int, list[T]]]:
    """Yield lists of `size` items, and the place of the first."""
    left, first = iter(items), 0
    while chunk := list(itertools.islice(left, size)):
        yield first, chunk
        first += size


class Client(Core):
    """A service, asked in turn; safe to use from several threads.

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
        self._settings = request_settings(base_url, api_key, timeout, max_retries, batch_size)
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
        return result_of(self._models())

    def ready(self, model: str | None = None) -> bool:
        """Tell whether the service, or one model, can answer now; False too where no service is reached.

        Raises UnknownModelError.
        """
        return result_of(self._is_up("/health/ready", model))

    def live(self) -> bool:
        """Tell whether the service's process runs, whatever the state of its models."""
        return result_of(self._is_up("/health/live"))

    def wait_until_ready(self, model: str | None = None, *, timeout: float = 60.0) -> None:
        """Wait until the service, or one model, can answer; raises RequestTimeoutError after `timeout` seconds."""
        result_of(self._wait_until_ready(model, timeout))

    @overload
    def classify(
        self, text: str, text_pair: str | None = None, **options: Unpack[ClassifyOptions]
    ) -> Classification: ...

    @overload
    def classify(
        self, text: Texts, text_pair: str | Texts | None = None, **options: Unpack[ClassifyOptions]
    ) -> list[Classification]: ...

    @overload
    def classify(
        self, text: str, text_pair: Texts, **options: Unpack[ClassifyOptions]
    ) -> list[Classification]: ...

    def classify(
        self, text: str | Texts, text_pair: str | Texts | None = None, **options: Unpack[ClassifyOptions]
    ) -> Any:
        """Return the label of each text, or of each pair of texts, with its scores."""
        return result_of(self._call(tasks.classify(options, text, text_pair)))

    @overload
    def ner(self, text: str, **options: Unpack[NerOptions]) -> list[Entity]: ...

    @overload
    def ner(self, text: Texts, **options: Unpack[NerOptions]) -> list[list[Entity]]: ...

    def ner(self, text: str | Texts, **options: Unpack[NerOptions]) -> Any:
        """Return the entities of each text, in its order; `text[start:end]` is the entity."""
        return result_of(self._call(tasks.ner(options, text)))

    @overload
    def qa(self, question: str, context: str, **options: Unpack[QaOptions]) -> Answer: ...

    @overload
    def qa(self, question: Texts, context: str | Texts, **options: Unpack[QaOptions]) -> list[Answer]: ...

    @overload
    def qa(self, question: str, context: Texts, **options: Unpack[QaOptions]) -> list[Answer]: ...

    def qa(self, question: str | Texts, context: str | Texts, **options: Unpack[QaOptions]) -> Any:
        """Return the answer to each question in its context; a string goes with each item of a list."""
        return result_of(self._call(tasks.qa(options, question, context)))

    def embed(self, text: str | Texts, **options: Unpack[EmbedOptions]) -> Vector:
        """Return the vector of a text, float32 (D,), or of each text of a list, (N, D)."""
        result: Vector = result_of(self._call(tasks.embed(options, text)))
        return result

    @overload
    def embed_sparse(self, text: str, **options: Unpack[SparseOptions]) -> SparseVector: ...

    @overload
    def embed_sparse(self, text: Texts, **options: Unpack[SparseOptions]) -> list[SparseVector]: ...

    def embed_sparse(self, text: str | Texts, **options: Unpack[SparseOptions]) -> Any:
        """Return the sparse vector of a text, or of each text of a list."""
        return result_of(self._call(tasks.embed_sparse(options, text)))

    @overload
    def similarity(
        self, text: str, candidates: Texts, **options: Unpack[SimilarityOptions]
    ) -> list[Match]: ...

    @overload
    def similarity(
        self, text: Texts, candidates: Texts, **options: Unpack[SimilarityOptions]
    ) -> list[list[Match]]: ...

    def similarity(self, text: str | Texts, candidates: Texts, **options: Unpack[SimilarityOptions]) -> Any:
        """Return the candidates for each text, closest in meaning first."""
        return result_of(self._call(tasks.similarity(options, text, candidates)))

    def rerank(self, query: str, candidates: Texts, **options: Unpack[RerankOptions]) -> list[Match]:
        """Return the candidates, best answer to the query first."""
        result: list[Match] = result_of(self._call(tasks.rerank(options, query, candidates)))
        return result

    @overload
    def multiple_choice(
        self, prompt: str, choices: Texts, **options: Unpack[MultipleChoiceOptions]
    ) -> Choice: ...

    @overload
    def multiple_choice(
        self, prompt: Texts, choices: Texts | ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> list[Choice]: ...

    @overload
    def multiple_choice(
        self, prompt: str, choices: ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> list[Choice]: ...

    def multiple_choice(
        self, prompt: str | Texts, choices: Texts | ChoiceLists, **options: Unpack[MultipleChoiceOptions]
    ) -> Any:
        """Return the best of the choices after each prompt; several prompts have one list of choices, or one each."""
        return result_of(self._call(tasks.multiple_choice(options, prompt, choices)))

    @overload
    def fill_mask(self, text: str, **options: Unpack[FillMaskOptions]) -> list[FilledMask]: ...

    @overload
    def fill_mask(self, text: Texts, **options: Unpack[FillMaskOptions]) -> list[list[FilledMask]]: ...

    def fill_mask(self, text: str | Texts, **options: Unpack[FillMaskOptions]) -> Any:
        """Return the masks of each text, and the candidates for each."""
        return result_of(self._call(tasks.fill_mask(options, text)))

    @overload
    def tokenize(self, text: str, **options: Unpack[Options]) -> list[Token]: ...

    @overload
    def tokenize(self, text: Texts, **options: Unpack[Options]) -> list[list[Token]]: ...

    def tokenize(self, text: str | Texts, **options: Unpack[Options]) -> Any:
        """Return the tokens that the model reads of each text."""
        return result_of(self._call(tasks.tokenize(options, text)))

    @overload
    def stream(
        self,
        task: Literal["classify"],
        items: Iterable[str] | Iterable[tuple[str, str]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[ClassifyOptions],
    ) -> Iterator[Classification | E]: ...

    @overload
    def stream(
        self,
        task: Literal["ner"],
        items: Iterable[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[NerOptions],
    ) -> Iterator[list[Entity] | E]: ...

    @overload
    def stream(
        self,
        task: Literal["qa"],
        items: Iterable[tuple[str, str]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[QaOptions],
    ) -> Iterator[Answer | E]: ...

    @overload
    def stream(
        self,
        task: Literal["embed"],
        items: Iterable[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[EmbedOptions],
    ) -> Iterator[Vector | E]: ...

    @overload
    def stream(
        self,
        task: Literal["embed_sparse"],
        items: Iterable[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[SparseOptions],
    ) -> Iterator[SparseVector | E]: ...

    @overload
    def stream(
        self,
        task: Literal["multiple_choice"],
        items: Iterable[tuple[str, list[str]]],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[MultipleChoiceOptions],
    ) -> Iterator[Choice | E]: ...

    @overload
    def stream(
        self,
        task: Literal["fill_mask"],
        items: Iterable[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[FillMaskOptions],
    ) -> Iterator[list[FilledMask] | E]: ...

    @overload
    def stream(
        self,
        task: Literal["tokenize"],
        items: Iterable[str],
        *,
        on_error: OnError[E] = ...,
        **options: Unpack[Options],
    ) -> Iterator[list[Token] | E]: ...

    def stream(
        self, task: str, items: Iterable[Any], *, on_error: OnError[Any] | None = None, **options: Any
    ) -> Iterator[Any]:
        """Yield a result for each item, in order, and hold one request's texts at a time.

        An item is a text, or a tuple: (text, text_pair), (question, context), (prompt, choices). `on_error` is called with
        the place and the error of each item that the service refuses, and its value is yielded instead; without it the
        first such error is raised.
        """
        for first, chunk in chunks(items, self._settings.batch_size):
            yield from result_of(self._run_each(tasks.stream_call(task, options, first, chunk), on_error))

    async def _finish(self, jobs: Iterator[Coroutine[Any, Any, None]]) -> None:
        for job in jobs:
            await job

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _request(self, arguments: Mapping[str, Any]) -> Reply:
        end = time.monotonic() + arguments["timeout"].read
        try:
            with self._connections.use(os.getpid()).stream(**arguments) as response:
                response.request.extensions["timeout"]["read"] = max(end - time.monotonic(), 0.001)
                response.stream = Bounded(response.stream, end)
                response.read()
                return read_reply(response)
        except httpx2.RequestError as error:
            raise error_of(error, self._settings.base_url) from error
