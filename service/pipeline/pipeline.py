"""From texts to results: tokenise, run through the scheduler, decode. One method a task.

Nothing here knows HTTP, but for the field names that messages use.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bert.errors import RequestTooLargeError
from bert.packing import joined
from bert.tasks import classification, embedding, fill_mask, ner, spans
from bert.tokenizer import Encoding, Window
from service.engine.engine_protocol import Floats
from service.engine.loaded_model import Model
from service.pipeline.encoding import (
    encode_fields,
    encode_texts,
    masked_encodings,
    question_windows,
    text_windows,
)
from service.pipeline.inputs import Texts, check_answer_size, check_not_blank, pair_count
from service.pipeline.request_context import RequestContext
from service.pipeline.tokenization import INLINE_TOKENS, Reader, Threads
from service.scheduling.scheduler_protocol import Runner

Result = TypeVar("Result")
MAX_SHOWN_TOKENS = 2**14
"""Maximum tokens in a response of /tokenize, about 1.5 MB."""
SHOWN_RULE = "/tokenize shows at most {}"
INLINE_RESULTS = 500
"""Fewer results (labels, answers, similarities) are decoded and written on the event loop, in some 2 ms."""
RESULT_CHARACTERS = 200
"""Characters of a response that cost as much as a result."""
INLINE_VECTORS = 32
"""Fewer embeddings are written on the event loop, in some 0.5 ms."""


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


@dataclass(frozen=True, slots=True)
class FilledMasks:
    """Each text's masks, decoded as they are taken, and about how many results that makes."""

    texts: Iterator[Iterator[fill_mask.FilledMask]]
    results: int


class Pipeline:
    """Answers questions to loaded models."""

    def __init__(self, scheduler: Runner, threads: int, max_characters: int) -> None:
        """Tokenise in so many threads; at most `max_characters` wait for that."""
        self._scheduler = scheduler
        self._threads = Threads(threads, max_characters)

    async def classify(
        self,
        call: RequestContext,
        model: Model,
        text: Texts,
        pair: Texts | None,
        *,
        top_k: int | None,
        truncate: bool,
    ) -> tuple[list[classification.Classification], list[bool]]:
        """Return a classification for each text or pair, and whether it was cut."""
        reader = self._reader(call, model, only_ids=True)
        with call.timed("tokenize"):
            encodings = await encode_texts(reader, model, text, pair, truncate=truncate)
        outputs = await self._infer(call, model, encodings)
        results = await self._decode(
            call,
            len(outputs) * len(model.spec.labels),
            lambda: classification.decode(joined(outputs), model.spec, top_k),
        )
        return results, [encoding.truncated for encoding in encodings]

    async def embed(self, call: RequestContext, model: Model, text: Texts, *, truncate: bool) -> Embedded:
        """Return a vector for each text."""
        return await self.embed_all(call, model, [text], truncate=truncate)

    async def embed_all(
        self, call: RequestContext, model: Model, fields: Sequence[Texts], *, truncate: bool
    ) -> Embedded:
        """Return a vector for each text of the first field, then of the next."""
        reader = self._reader(call, model, only_ids=True)
        with call.timed("tokenize"):
            encodings = await encode_fields(reader, model, fields, truncate=truncate)
        outputs = await self._infer(call, model, encodings)
        return Embedded(joined(outputs), [encoding.truncated for encoding in encodings])

    def rank(self, embedded: Embedded, queries: int, top_k: int | None) -> Iterator[list[embedding.Ranked]]:
        """Rank for each of the first vectors, the queries', all that come after them, best first."""
        asked, others = embedded.vectors[:queries], embedded.vectors[queries:]
        return (embedding.rank(query, others, top_k) for query in asked)

    async def entities(self, call: RequestContext, model: Model, text: Texts) -> list[list[ner.Entity]]:
        """Return each text's entities; long texts are read in windows, a text without a word has none."""
        spec, reader = model.spec, self._reader(call, model)
        with call.timed("tokenize"):
            pieces, windows = await text_windows(reader, model, text)
        logits = await self._infer_windows(call, model, windows)

        def decode() -> list[list[ner.Entity]]:
            return [
                ner.decode(text.values[i], pieces[i], ner.merge_windows(windows[i], logits[i]), spec.labels)
                if windows[i]
                else []
                for i in range(len(text))
            ]

        return await self._decode(call, len(text), decode)

    async def answers(
        self,
        call: RequestContext,
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
        with call.timed("tokenize"):
            windows = await question_windows(reader, model, question, context, count)
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

        return await self._decode(call, count * top_k, decode)

    async def fill_masks(self, call: RequestContext, model: Model, text: Texts, *, top_k: int) -> FilledMasks:
        """Return each text's masks with their `top_k` best pieces, which are decoded when they are taken."""
        reader = self._reader(call, model)
        with call.timed("tokenize"):
            encodings = await masked_encodings(reader, model, text)
        masks = [len(fill_mask.mask_positions(encoding)) for encoding in encodings]
        characters = check_answer_size(text, masks, top_k)
        outputs = await self._infer(call, model, encodings)

        texts = (
            fill_mask.decode(value, encoding, best, model.tokenizer, top_k)
            for value, encoding, best in zip(text.values, encodings, outputs, strict=True)
        )
        return FilledMasks(texts, sum(masks) * top_k + characters // RESULT_CHARACTERS)

    async def tokens(self, call: RequestContext, model: Model, text: Texts) -> list[list[Token]]:
        """Return each text's tokens, special ones included; at most MAX_SHOWN_TOKENS."""
        limit = min(self._scheduler.max_tokens, MAX_SHOWN_TOKENS)
        reader = Reader(call, model.tokenizer, limit, self._threads, limit_rule=SHOWN_RULE)
        with call.timed("tokenize"):
            pieces = await reader.pieces(text.values)
            call.tokens = sum(len(each) + 2 for each in pieces)
            reader.check_tokens(call.tokens)
            return await reader.build(
                len(text), lambda: [_tokens(model, model.tokenizer.single(each)) for each in pieces]
            )

    async def run_in_thread(self, function: Callable[[], Result]) -> Result:
        """Run what would hold up the event loop."""
        return await self._threads.run(function)

    async def write(self, results: int, function: Callable[[], Result], most: int = INLINE_RESULTS) -> Result:
        """Write the response; in a thread if it has more than `most` results."""
        return function() if results <= most else await self.run_in_thread(function)

    async def close(self) -> None:
        """End the threads."""
        await self._threads.close()

    def _reader(self, call: RequestContext, model: Model, *, only_ids: bool = False) -> Reader:
        return Reader(call, model.tokenizer, self._scheduler.max_tokens, self._threads, only_ids)

    async def _infer(self, call: RequestContext, model: Model, encodings: Sequence[Encoding]) -> list[Floats]:
        """Run encodings through the scheduler; raises the refusal of a request that could never be queued."""
        call.tokens = sum(len(encoding) for encoding in encodings)
        limit = self._scheduler.max_tokens
        if call.tokens > limit:
            raise RequestTooLargeError(call.tokens, limit)
        result = await self._scheduler.submit(model.name, encodings, call.deadline)
        call.seconds["queue"], call.seconds["inference"] = result.queue_s, result.inference_s
        return result.outputs

    async def _infer_windows(
        self, call: RequestContext, model: Model, windows: Sequence[Sequence[Window]]
    ) -> list[list[Floats]]:
        """Run the windows of several texts as one job, and give each text its own outputs back."""
        encodings = [window.encoding for text in windows for window in text]
        outputs = iter(await self._infer(call, model, encodings) if encodings else [])
        return [[next(outputs) for _ in text] for text in windows]

    async def _decode(self, call: RequestContext, results: int, function: Callable[[], Result]) -> Result:
        """Decode outputs to about so many results; in a thread if that takes long."""
        with call.timed("decode"):
            if call.tokens < INLINE_TOKENS and results <= INLINE_RESULTS:
                return function()
            return await self.run_in_thread(function)


def _tokens(model: Model, encoding: Encoding) -> list[Token]:
    columns = (encoding.ids.tolist(), encoding.offsets.tolist(), encoding.sequence_ids.tolist())
    return [
        Token(token_id, model.tokenizer.id_to_token(token_id), start, end, sequence < 0)
        for token_id, (start, end), sequence in zip(*columns, strict=True)
    ]
