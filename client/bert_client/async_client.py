"""The client for programs on asyncio."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Literal, TypeVar, Unpack, overload

from bert_client import tasks
from bert_client.async_sender import AsyncSender, chunks
from bert_client.calls import ChoiceLists, OnError, Texts, Vector
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
)
from bert_client.results import Answer, Choice, Classification, Entity, FilledMask, Match, Token

E = TypeVar("E")
T = TypeVar("T")
Items = Iterable[T] | AsyncIterable[T]


class AsyncClient(AsyncSender):
    """A service, asked from asyncio.

    One string gives one result, a list a list of results in its order. Options are those of docs/api.md.
    """

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
        parts = chunks(items, self._wiring.batch_size)
        jobs = (
            self._run_each(tasks.stream_call(task, options, first, chunk), on_error)
            async for first, chunk in parts
        )
        async with aclosing(self._in_order(jobs)) as finished:
            async for results in finished:
                for result in results:
                    yield result
