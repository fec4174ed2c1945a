"""Texts to results: tokenise, run through the scheduler, decode. One method per task."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from bert.errors import RequestTooLargeError
from bert.graph_inputs import joined
from bert.tasks import classification, fill_mask, multiple_choice, ner, similarity, spans
from bert.tasks.aggregation import PLAIN, EntityOptions, TaggedPiece, tagged_pieces
from bert.tasks.classification import ALL_SCORES, Classification, Scoring, WindowMerge
from bert.tasks.ner import Entity
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Reads
from bert.text.offsets import MarkEnds
from bert.tokenizer import Encoding, Pieces, Window
from service.engine.engine_protocol import Floats
from service.engine.loaded_model import Model
from service.pipeline.inputs import (
    Choices,
    RequestContext,
    Texts,
    check_dimensions,
    check_not_blank,
    pair_count,
    prompted,
)
from service.pipeline.label_options import check_scoring, check_windows, whole_windows
from service.pipeline.relevance import Embedded, Relevance, is_cross_encoder, prompt_names
from service.pipeline.response_size import (
    RESULT_BYTES,
    HasBounds,
    choices_size,
    note_size,
    scores_size,
    spans_size,
    text_size,
    vectors_size,
)
from service.pipeline.tokenization import (
    INLINE_TOKENS,
    BoundedTokenizer,
    Threads,
    encode_choices,
    encode_fields,
    encode_masked,
    encode_texts,
    is_short_text,
    question_windows,
    text_windows,
)
from service.scheduling.scheduler_protocol import SchedulerProtocol

Result = TypeVar("Result")
Stretch = TypeVar("Stretch", bound=HasBounds)
WARM_UP_TEXT = "a"
"""Short enough for every model and vocabulary, as a question too."""
MAX_SHOWN_TOKENS = 2**14
"""Maximum tokens in a response of /tokenize, about 1.5 MB."""
SHOWN_RULE = "/tokenize shows at most {}"
INLINE_RESULTS = 500
"""Maximum results (labels, answers, similarities) decoded and serialised on the event loop, within 2 ms."""
SMALL_RESPONSE_BYTES = 2**16
"""Largest response for which no room is asked; `max_connections` bounds what those take together."""
INLINE_RESPONSE_BYTES = 2**18
"""Largest response that is serialised on the event loop, within 1 ms."""
INLINE_VECTORS = 32
"""Maximum embeddings serialised on the event loop, within 0.5 ms."""


@dataclass(frozen=True, slots=True)
class Token:
    """A vocabulary piece and the characters text[start:end] that it covers.

    `special` are those that the model adds ([CLS], [SEP]); their start and end are 0.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool


@dataclass(frozen=True, slots=True)
class FilledMasks:
    """Each text's masks, decoded lazily, and the approximate number of results."""

    texts: Iterator[Iterator[fill_mask.FilledMask]]
    results: int


class Pipeline:
    """Runs requests through loaded models."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        threads: int,
        max_characters: int,
        max_response_bytes: int,
        room: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Tokenise in `threads` threads; at most `max_characters` wait for them.

        What would take more than `max_response_bytes` in a response is refused with an InvalidRequestError. A response is
        made inside `room(bytes)`, which raises if there is none.
        """
        self._room = room
        self._scheduler, self._max_response_bytes = scheduler, max_response_bytes
        self._threads = Threads(threads, max_characters)

    async def classify(
        self,
        request: RequestContext,
        model: Model,
        text: Texts,
        pair: Texts | None,
        scoring: Scoring = ALL_SCORES,
        *,
        truncate: bool,
        windows: WindowMerge | None = None,
    ) -> tuple[list[Classification], list[bool]]:
        """Return a classification for each text or pair, and whether it was cut.

        With `windows` all of a long text is read, and the scores of its windows are merged.
        """
        check_scoring(model, scoring)
        count = max(len(text), len(pair) if pair is not None else 0)
        self._note(request, text, count * scores_size(model.spec.labels, scoring.most_scores(model.spec)))
        if windows is not None:
            check_windows(pair, truncate=truncate)
            return await self._classify_windows(request, model, text, scoring, windows), [False] * len(text)
        outputs, truncated = await self._classify(request, model, text, pair, truncate=truncate)
        results = await self._decode(
            request,
            len(outputs) * len(model.spec.labels),
            lambda: classification.decode(joined(outputs), model.spec, scoring),
        )
        return results, truncated

    async def relevance(
        self, request: RequestContext, model: Model, query: Texts, candidates: Texts, *, truncate: bool
    ) -> Relevance:
        """Return how well each candidate answers one query, by a model of `find_reranker`."""
        if is_cross_encoder(model.spec):
            return await self.numbers(request, model, query, candidates, truncate=truncate)
        for_query, for_candidates = prompt_names(model.spec)
        query, candidates = prompted(query, model, for_query), prompted(candidates, model, for_candidates)
        embedded = await self.embed(request, model, query, candidates, truncate=truncate, shown=False)
        return Relevance.of_vectors(embedded, model.spec.similarity)

    async def numbers(
        self, request: RequestContext, model: Model, text: Texts, pair: Texts | None, *, truncate: bool
    ) -> Relevance:
        """Return the numbers that a classifier with one label gives texts or pairs."""
        outputs, truncated = await self._classify(request, model, text, pair, truncate=truncate)
        return Relevance.of_logits(joined(outputs), truncated)

    async def choose(
        self,
        request: RequestContext,
        model: Model,
        prompt: Texts,
        choices: Choices,
        count: int,
        *,
        top_k: int | None,
        truncate: bool,
    ) -> tuple[list[list[multiple_choice.ScoredChoice]], list[bool]]:
        """Return the choices of each of `count` prompts, best first, and whether any of them was cut."""
        self._note(request, prompt, choices_size(choices, count, top_k))
        bounded = self._bounded(request, model, only_ids=True)
        with request.timed("tokenize"):
            rows = await encode_choices(bounded, model, prompt, choices, count, truncate=truncate)
        flat = [encoding for each in rows for encoding in each]
        scores = iter(await self._infer(request, model, flat))
        results = await self._decode(
            request,
            len(flat),
            lambda: [multiple_choice.decode([next(scores) for _ in each], top_k) for each in rows],
        )
        return results, [any(encoding.truncated for encoding in each) for each in rows]

    async def embed(
        self,
        request: RequestContext,
        model: Model,
        *fields: Texts,
        truncate: bool,
        dimensions: int | None = None,
        shown: bool = True,
    ) -> Embedded:
        """Return a vector for each text of the first field, then of the next: its first `dimensions` numbers, or all.

        The response does not hold vectors that are only compared, and not `shown`.
        """
        check_dimensions(model, dimensions)
        if shown:
            numbers = dimensions or model.embedding_size or 0
            self._note(request, fields[0], vectors_size(sum(map(len, fields)), numbers))
        bounded = self._bounded(request, model, only_ids=True)
        with request.timed("tokenize"):
            encodings = await encode_fields(bounded, model, fields, truncate=truncate)
        vectors = joined(await self._infer(request, model, encodings))
        if dimensions is not None:
            vectors = similarity.first_numbers(vectors, dimensions, model.spec)
        return Embedded(vectors, [encoding.truncated for encoding in encodings])

    def rank(
        self, request: RequestContext, model: Model, text: Texts, embedded: Embedded, top_k: int | None
    ) -> Iterator[list[similarity.Ranked]]:
        """Rank the vectors after those of `text`, best first, for each of these, as the model compares vectors."""
        asked, others = embedded.vectors[: len(text)], embedded.vectors[len(text) :]
        self._note(request, text, len(asked) * min(len(others), top_k or len(others)) * RESULT_BYTES)
        return (similarity.rank(query, others, top_k, model.spec.similarity) for query in asked)

    async def entities(
        self, request: RequestContext, model: Model, text: Texts, options: EntityOptions = PLAIN
    ) -> list[list[Entity]]:
        """Return each text's entities; long texts are read in windows."""
        return await self._tagged(request, model, text, options.decode, by_piece=options.by_piece)

    async def tagged_pieces(
        self, request: RequestContext, model: Model, text: Texts
    ) -> list[list[TaggedPiece]]:
        """Return each text's pieces that have a tag; long texts are read in windows."""
        return await self._tagged(request, model, text, tagged_pieces, by_piece=True)

    async def answers(
        self,
        request: RequestContext,
        model: Model,
        question: Texts,
        context: Texts,
        *,
        top_k: int,
        max_answer_tokens: int | None,
        no_answer_threshold: float | None = None,
    ) -> list[spans.Answer]:
        """Answer each question from its context; long contexts are read in windows."""
        check_not_blank(question, context)
        count = pair_count(question, context)
        bounded = self._bounded(request, model)
        with request.timed("tokenize"):
            windows = await question_windows(bounded, model, question, context, count)
        logits = await self._infer_windows(request, model, windows)
        passages = [context.values[context.index(i)] for i in range(count)]

        def decode() -> list[spans.Answer]:
            mark_ends = {passage: MarkEnds(passage) for passage in dict.fromkeys(context.values)}
            found = [
                spans.decode(
                    passage,
                    windows[i],
                    logits[i],
                    model.spec,
                    top_k,
                    max_answer_tokens,
                    no_answer_threshold,
                    mark_ends[passage],
                )
                for i, passage in enumerate(passages)
            ]
            shown = (span for each in found for span in (each.span, *each.alternatives) if span is not None)
            self._note(request, context, spans_size(shown))
            return found

        return await self._decode(request, count * top_k, decode, context)

    async def fill_masks(
        self, request: RequestContext, model: Model, text: Texts, *, top_k: int
    ) -> FilledMasks:
        """Return each text's masks with their `top_k` best pieces, decoded lazily."""
        bounded = self._bounded(request, model)
        with request.timed("tokenize"):
            encodings = await encode_masked(bounded, model, text)
        masks = [len(fill_mask.mask_positions(encoding)) for encoding in encodings]
        sizes = (text_size(each) + RESULT_BYTES for each in text.values)
        self._note(request, text, top_k * sum(size * count for size, count in zip(sizes, masks, strict=True)))
        outputs = await self._infer(request, model, encodings)

        texts = (
            fill_mask.decode(value, encoding, best, model.tokenizer, top_k)
            for value, encoding, best in zip(text.values, encodings, outputs, strict=True)
        )
        return FilledMasks(texts, sum(masks) * top_k)

    async def warm_up(self, request: RequestContext, model: Model) -> None:
        """Run one short text through a model, whatever its task."""
        task, spec, tokenizer = TASKS[model.spec.task], model.spec, model.tokenizer
        count = 1 if task.reads(spec) is Reads.TEXT else 2
        await self._infer(
            request, model, task.sample(tokenizer, tokenizer.pieces([WARM_UP_TEXT] * count), spec)
        )

    async def tokens(self, request: RequestContext, model: Model, text: Texts) -> list[list[Token]]:
        """Return each text's tokens, special ones included; at most MAX_SHOWN_TOKENS."""
        limit = min(self._scheduler.max_tokens, MAX_SHOWN_TOKENS)
        bounded = BoundedTokenizer(request, model.tokenizer, limit, self._threads, limit_rule=SHOWN_RULE)
        with request.timed("tokenize"):
            pieces = await bounded.pieces(text.values)
            bounded.note_unknown(pieces, text.where)
            special = model.tokenizer.form.special_tokens(1)
            request.tokens = sum(len(each) + special for each in pieces)
            bounded.check_tokens(request.tokens)
            texts = sum(map(text_size, text.values))
            self._note(request, text, request.tokens * RESULT_BYTES + texts)
            return await bounded.build(
                len(text), lambda: [_tokens(model, model.tokenizer.single(each)) for each in pieces]
            )

    async def run_in_thread(self, function: Callable[[], Result]) -> Result:
        """Run a function that would block the event loop."""
        return await self._threads.run(function)

    async def write(
        self,
        request: RequestContext,
        results: int,
        function: Callable[[], Result],
        max_inline: int = INLINE_RESULTS,
    ) -> Result:
        """Serialise a response, in a thread if it is large or has more than `max_inline` results.

        Raises what `room` does.
        """
        size = request.response_bytes
        with self._room(size) if size > SMALL_RESPONSE_BYTES else nullcontext():
            if results <= max_inline and size <= INLINE_RESPONSE_BYTES:
                return function()
            return await self.run_in_thread(function)

    async def close(self) -> None:
        """End the threads."""
        await self._threads.close()

    def _bounded(self, request: RequestContext, model: Model, *, only_ids: bool = False) -> BoundedTokenizer:
        return BoundedTokenizer(request, model.tokenizer, self._scheduler.max_tokens, self._threads, only_ids)

    async def _classify(
        self, request: RequestContext, model: Model, text: Texts, pair: Texts | None, *, truncate: bool
    ) -> tuple[list[Floats], list[bool]]:
        """Return each text's or pair's logits, and whether it was cut."""
        bounded = self._bounded(request, model, only_ids=True)
        with request.timed("tokenize"):
            encodings = await encode_texts(bounded, model, text, pair, truncate=truncate)
        outputs = await self._infer(request, model, encodings)
        return outputs, [encoding.truncated for encoding in encodings]

    async def _classify_windows(
        self, request: RequestContext, model: Model, text: Texts, scoring: Scoring, merge: WindowMerge
    ) -> list[Classification]:
        bounded = self._bounded(request, model, only_ids=True)
        with request.timed("tokenize"):
            windows = await whole_windows(bounded, model, text)
        logits = await self._infer_windows(request, model, windows)

        def decode() -> list[Classification]:
            tokens = [[window.stop - window.start for window in each] for each in windows]
            rows = [joined(each) for each in logits]
            return classification.decode_windows(rows, tokens, model.spec, merge, scoring)

        return await self._decode(request, sum(map(len, windows)) * len(model.spec.labels), decode)

    async def _infer(
        self, request: RequestContext, model: Model, encodings: Sequence[Encoding]
    ) -> list[Floats]:
        """Run encodings through the scheduler; raises RequestTooLargeError if they could never be queued."""
        request.tokens = sum(len(encoding) for encoding in encodings)
        limit = self._scheduler.max_tokens
        if request.tokens > limit:
            raise RequestTooLargeError(request.tokens, limit)
        result = await self._scheduler.submit(model.name, encodings, request.deadline)
        request.seconds["queue"], request.seconds["inference"] = result.queue_s, result.inference_s
        return result.outputs

    async def _tagged(
        self,
        request: RequestContext,
        model: Model,
        text: Texts,
        decode_one: Callable[[str, Pieces, Floats, TaskSpec], Iterable[Stretch]],
        *,
        by_piece: bool,
    ) -> list[list[Stretch]]:
        """Decode each text's pieces with the logits of its words, or with `by_piece` of the pieces."""
        spec, bounded = model.spec, self._bounded(request, model)
        with request.timed("tokenize"):
            pieces, windows = await text_windows(bounded, model, text, by_piece=by_piece)
        logits = await self._infer_windows(request, model, windows)

        def decode() -> list[list[Stretch]]:
            found = [
                list(decode_one(text.values[i], pieces[i], ner.merge_windows(windows[i], logits[i]), spec))
                if windows[i]
                else []
                for i in range(len(text))
            ]
            self._note(request, text, spans_size(chain.from_iterable(found)))
            return found

        return await self._decode(request, len(text), decode, text)

    async def _infer_windows(
        self, request: RequestContext, model: Model, windows: Sequence[Sequence[Window]]
    ) -> list[list[Floats]]:
        """Run the windows of several texts as one job; return the outputs by text."""
        encodings = [window.encoding for text in windows for window in text]
        outputs = iter(await self._infer(request, model, encodings) if encodings else [])
        return [[next(outputs) for _ in text] for text in windows]

    async def _decode(
        self,
        request: RequestContext,
        results: int,
        function: Callable[[], Result],
        text: Texts | None = None,
    ) -> Result:
        """Decode outputs to about `results` results, in a thread if that takes long.

        `text` is what the results point into.
        """
        with request.timed("decode"):
            is_short = text is None or is_short_text(text.values)
            if is_short and request.tokens < INLINE_TOKENS and results <= INLINE_RESULTS:
                return function()
            return await self.run_in_thread(function)

    def _note(self, request: RequestContext, text: Texts, size: int) -> None:
        """Note the size of the response; raises InvalidRequestError, which names `text`, if it is too large."""
        note_size(request, self._max_response_bytes, text.name, size)


def _tokens(model: Model, encoding: Encoding) -> list[Token]:
    columns = (encoding.ids.tolist(), encoding.offsets.tolist(), encoding.sequence_ids.tolist())
    return [
        Token(token_id, model.tokenizer.id_to_token(token_id), start, end, sequence < 0)
        for token_id, (start, end), sequence in zip(*columns, strict=True)
    ]
