"""From texts to results: tokenise, run through the scheduler, decode. One method a task.

Nothing here knows HTTP, but for the field names that messages use.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from bert.tasks import classification, embedding, fill_mask, ner, spans
from bert.tokenizer import Encoding, Window
from service.call import Call
from service.encoding import encode_texts, masked_encodings, question_windows, text_windows
from service.engine import Floats
from service.packing import joined
from service.reading import Reader
from service.registry import Model
from service.runner import Runner
from service.texts import Texts, check_answer_size, check_not_blank, pair_count, too_large

Result = TypeVar("Result")
INLINE_TEXTS, INLINE_CHARACTERS = 8, 1_000
"""A request of no more is tokenised on the event loop, in half a millisecond at most: for a sentence a thread's hand-over
costs twice as much as the work."""
INLINE_TOKENS = 2_000
"""Results of fewer tokens are decoded on the event loop: a thread's hand-over costs more than the work."""
INLINE_PAIRS = 1_000
"""As many similarities are ranked and written on the event loop, in some 4 ms."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors (N, H) of length 1, and which of the texts were cut."""

    vectors: Floats
    truncated: list[bool]


@dataclass(frozen=True, slots=True)
class Token:
    """One token as the model reads it; special ones have start and end 0."""

    id: int
    text: str
    start: int
    end: int
    special: bool


class Pipeline:
    """Answers questions to loaded models."""

    def __init__(self, scheduler: Runner, threads: int) -> None:
        """`threads` tokenise, and decode long documents."""
        self._scheduler = scheduler
        self._threads = ThreadPoolExecutor(threads, "tokenize")

    async def classify(
        self, call: Call, model: Model, text: Texts, pair: Texts | None, *, top_k: int | None, truncate: bool
    ) -> tuple[list[classification.Classification], list[bool]]:
        """Return a classification for each text or pair, and whether it was cut."""
        reader = self._reader(call, model, only_ids=True)
        encodings = await self._prepare(
            call,
            [text, pair] if pair is not None else [text],
            lambda: encode_texts(reader, model, text, pair, truncate=truncate),
        )
        outputs = await self._infer(call, model, encodings)
        with call.timed("decode"):
            results = classification.decode(joined(outputs), model.spec, top_k)
        return results, [encoding.truncated for encoding in encodings]

    async def embed(self, call: Call, model: Model, text: Texts, *, truncate: bool) -> Embedded:
        """Return a vector for each text."""
        return await self.embed_all(call, model, [text], truncate=truncate)

    async def embed_all(
        self, call: Call, model: Model, fields: Sequence[Texts], *, truncate: bool
    ) -> Embedded:
        """Return a vector for each text of the first field, then of the next."""
        reader = self._reader(call, model, only_ids=True)

        def prepare() -> list[Encoding]:
            return [
                e for field in fields for e in encode_texts(reader, model, field, None, truncate=truncate)
            ]

        encodings = await self._prepare(call, fields, prepare)
        outputs = await self._infer(call, model, encodings)
        return Embedded(joined(outputs), [encoding.truncated for encoding in encodings])

    def rank(
        self, call: Call, embedded: Embedded, queries: int, top_k: int | None
    ) -> list[list[embedding.Ranked]]:
        """Rank for each of the first vectors, the queries', all that come after them, best first."""
        with call.timed("decode"):
            asked, others = embedded.vectors[:queries], embedded.vectors[queries:]
            return [embedding.rank(query, others, top_k) for query in asked]

    async def entities(self, call: Call, model: Model, text: Texts) -> list[list[ner.Entity]]:
        """Return each text's entities; long texts are read in windows, a text without a word has none."""
        spec, reader = model.spec, self._reader(call, model)
        pieces, windows = await self._prepare(call, [text], lambda: text_windows(reader, model, text))
        logits = await self._infer_windows(call, model, windows)

        def decode() -> list[list[ner.Entity]]:
            return [
                ner.decode(text.values[i], pieces[i], ner.merge_windows(windows[i], logits[i]), spec.labels)
                if windows[i]
                else []
                for i in range(len(text))
            ]

        return await self._decode(call, decode)

    async def answers(
        self,
        call: Call,
        model: Model,
        question: Texts,
        context: Texts,
        *,
        top_k: int,
        max_answer_tokens: int | None,
    ) -> list[spans.Answer]:
        """Answer each question from its context; long contexts are read in windows."""
        check_not_blank(question, context)
        count = pair_count(question, context)
        reader = self._reader(call, model)
        windows = await self._prepare(
            call, [question, context], lambda: question_windows(reader, model, question, context, count)
        )
        logits = await self._infer_windows(call, model, windows)

        def decode() -> list[spans.Answer]:
            return [
                spans.decode(
                    context.values[context.index(i)],
                    windows[i],
                    logits[i],
                    model.spec,
                    top_k,
                    max_answer_tokens,
                )
                for i in range(count)
            ]

        return await self._decode(call, decode)

    async def fill_masks(
        self, call: Call, model: Model, text: Texts, *, top_k: int
    ) -> list[list[fill_mask.FilledMask]]:
        """Return each text's masks with their `top_k` best pieces."""
        reader = self._reader(call, model)
        encodings = await self._prepare(call, [text], lambda: masked_encodings(reader, model, text))
        check_answer_size(text, [len(fill_mask.mask_positions(encoding)) for encoding in encodings], top_k)
        outputs = await self._infer(call, model, encodings)

        def decode() -> list[list[fill_mask.FilledMask]]:
            return [
                fill_mask.decode(value, encoding, best, model.tokenizer, top_k)
                for value, encoding, best in zip(text.values, encodings, outputs, strict=True)
            ]

        return await self._decode(call, decode)

    async def tokens(self, call: Call, model: Model, text: Texts) -> list[list[Token]]:
        """Return each text's tokens, as many as it has, special ones included; at most what could be queued."""
        reader = self._reader(call, model)

        def prepare() -> list[list[Token]]:
            encodings = [model.tokenizer.single(pieces) for pieces in reader.pieces(text.values)]
            call.tokens = sum(len(encoding) for encoding in encodings)
            reader.check_tokens(call.tokens)
            return [_tokens(model, encoding) for encoding in encodings]

        return await self._prepare(call, [text], prepare)

    async def aside(self, function: Callable[[], Result]) -> Result:
        """Run on a thread what would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def close(self) -> None:
        """End the threads."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _reader(self, call: Call, model: Model, *, only_ids: bool = False) -> Reader:
        return Reader(call, model.tokenizer, self._scheduler.max_tokens, only_ids)

    async def _prepare(self, call: Call, fields: Sequence[Texts], function: Callable[[], Result]) -> Result:
        """Tokenise these texts; on a thread if that takes long.

        The tokenizer releases the interpreter's lock, and the event loop stays free.
        """
        with call.timed("tokenize"):
            return function() if _is_short(fields) else await self.aside(function)

    async def _infer(self, call: Call, model: Model, encodings: Sequence[Encoding]) -> list[Floats]:
        """Run encodings through the scheduler; raises the refusal of a request that could never be queued."""
        call.tokens = sum(len(encoding) for encoding in encodings)
        limit = self._scheduler.max_tokens
        if call.tokens > limit:
            raise too_large(call.tokens, limit)
        result = await self._scheduler.submit(model.name, encodings, call.deadline)
        call.seconds["queue"], call.seconds["inference"] = result.queue_s, result.inference_s
        return result.outputs

    async def _infer_windows(
        self, call: Call, model: Model, windows: Sequence[Sequence[Window]]
    ) -> list[list[Floats]]:
        """Run the windows of several texts as one job, and give each text its own outputs back."""
        encodings = [window.encoding for text in windows for window in text]
        outputs = iter(await self._infer(call, model, encodings) if encodings else [])
        return [[next(outputs) for _ in text] for text in windows]

    async def _decode(self, call: Call, function: Callable[[], Result]) -> Result:
        with call.timed("decode"):
            if call.tokens < INLINE_TOKENS:
                return function()
            return await self.aside(function)


def _is_short(fields: Sequence[Texts]) -> bool:
    """Tell whether tokenising these takes less than handing it over."""
    return (
        sum(map(len, fields)) <= INLINE_TEXTS
        and sum(len(value) for field in fields for value in field.values) <= INLINE_CHARACTERS
    )


def _tokens(model: Model, encoding: Encoding) -> list[Token]:
    columns = (encoding.ids.tolist(), encoding.offsets.tolist(), encoding.sequence_ids.tolist())
    return [
        Token(token_id, model.tokenizer.id_to_token(token_id), start, end, sequence < 0)
        for token_id, (start, end), sequence in zip(*columns, strict=True)
    ]
