"""What every task does with texts: tokenise, run through the scheduler, decode, each within the request's limits.

The tasks themselves are in `service/tasks/`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import orjson

from bert.errors import QUEUE_RULE, FieldError, InvalidRequestError, RequestTooLargeError
from bert.tasks.registry import TASKS
from bert.tasks.task import Reads
from bert.tokenizer import Encoding, Window
from service.engine.engine_protocol import Floats
from service.engine.models import Model
from service.pipeline.inputs import RequestContext, Texts, check_count
from service.pipeline.tokenization import INLINE_TOKENS, BoundedTokenizer, Threads, is_short_text
from service.scheduling.scheduler_protocol import SchedulerProtocol

Result = TypeVar("Result")
WARM_UP_TEXT = "a"
"""Short enough for every model and vocabulary, as a question too."""
INLINE_RESULTS = 500
"""Maximum results (labels, answers, similarities) decoded and serialised on the event loop, within 2 ms."""
RESULT_BYTES = 80
"""Bytes of a result's names and numbers in JSON, about."""
CHARACTER_BYTES = 6
"""Most bytes of a character in JSON: those of an escape, such as \\u0001."""


class Pipeline:
    """Runs requests through loaded models."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        threads: int,
        max_characters: int,
        max_response_bytes: int,
        max_texts: int = sys.maxsize,
    ) -> None:
        """Tokenise in `threads` threads; at most `max_characters` wait for them.

        A request of more than `max_texts` texts, or with a response of more than `max_response_bytes`, is refused with an
        InvalidRequestError.
        """
        self.scheduler, self.max_response_bytes, self.max_texts = scheduler, max_response_bytes, max_texts
        self.threads = Threads(threads, max_characters)

    async def warm_up(self, context: RequestContext, model: Model) -> None:
        """Run one short text through a model, whatever its task."""
        task, spec, tokenizer = TASKS[model.spec.task], model.spec, model.tokenizer
        count = 1 if task.reads(spec) is Reads.TEXT else 2
        pieces = tokenizer.pieces([WARM_UP_TEXT] * count)
        await Call(self, context, model).infer(task.sample(tokenizer, pieces, spec))

    async def run_in_thread(self, function: Callable[[], Result]) -> Result:
        """Run a function that would block the event loop."""
        return await self.threads.run(function)

    async def close(self) -> None:
        """End the threads."""
        await self.threads.close()


@dataclass(slots=True)
class Call:
    """One request to one model: the steps of which every task is made."""

    pipeline: Pipeline
    context: RequestContext
    model: Model
    needs_json: bool = False
    """The response has to be JSON: it is a line of many, or a part of another API's."""

    def check_count(self, *fields: Texts) -> None:
        """Raise InvalidRequestError for no text, or for too many in all fields together."""
        check_count(self.pipeline.max_texts, *fields)

    def tokenizer(
        self, *, only_ids: bool = False, most_tokens: int = sys.maxsize, limit_rule: str = QUEUE_RULE
    ) -> BoundedTokenizer:
        """Return the tokenizer of this request, which stops at `most_tokens` and at what can ever be queued.

        `only_ids` leaves out where each piece lies in its text.
        """
        limit = min(self.pipeline.scheduler.max_tokens, most_tokens)
        return BoundedTokenizer(
            self.context, self.model.tokenizer, limit, self.pipeline.threads, only_ids, limit_rule
        )

    async def infer(self, encodings: Sequence[Encoding]) -> list[Floats]:
        """Run encodings through the scheduler; raises RequestTooLargeError if they could never be queued."""
        context, scheduler = self.context, self.pipeline.scheduler
        context.tokens = sum(len(encoding) for encoding in encodings)
        if context.tokens > scheduler.max_tokens:
            raise RequestTooLargeError(context.tokens, scheduler.max_tokens)
        result = await scheduler.submit(self.model.name, encodings, context.deadline)
        context.seconds["queue"], context.seconds["inference"] = result.queue_s, result.inference_s
        return result.outputs

    async def infer_windows(self, windows: Sequence[Sequence[Window]]) -> list[list[Floats]]:
        """Run the windows of several texts as one job; return the outputs by text."""
        encodings = [window.encoding for text in windows for window in text]
        outputs = iter(await self.infer(encodings) if encodings else [])
        return [[next(outputs) for _ in text] for text in windows]

    async def decode(self, results: int, function: Callable[[], Result], text: Texts | None = None) -> Result:
        """Decode outputs to about `results` results, in a thread if that takes long.

        `text` is what the results point into.
        """
        with self.context.timed("decode"):
            is_short = text is None or is_short_text(text.values)
            if is_short and self.context.tokens < INLINE_TOKENS and results <= INLINE_RESULTS:
                return function()
            return await self.pipeline.run_in_thread(function)

    def note_size(self, text: Texts, size: int) -> None:
        """Note the size of the response in bytes; raises InvalidRequestError, which names `text`, if it is too large."""
        self.context.response_bytes = size
        if size > self.pipeline.max_response_bytes:
            message = (
                f"the response would take up to {size} bytes, and one may take {self.pipeline.max_response_bytes} "
                "(max_response_bytes): ask for fewer results, or send the texts in several requests"
            )
            raise InvalidRequestError([FieldError(text.name, message)])


class HasBounds(Protocol):
    """A stretch of a text, [start:end] in code points: an answer, an entity, a piece."""

    @property
    def start(self) -> int:
        """Return where it starts."""
        ...

    @property
    def end(self) -> int:
        """Return where it ends."""
        ...


def text_size(text: str) -> int:
    """Return the bytes of a text in JSON."""
    return len(orjson.dumps(text))


def spans_size(spans: Iterable[HasBounds]) -> int:
    """Return the most bytes of answers or entities, from their lengths alone: their texts may be large together."""
    return sum(RESULT_BYTES + CHARACTER_BYTES * (span.end - span.start) for span in spans)
