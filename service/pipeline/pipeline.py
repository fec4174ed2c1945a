"""The parts that all requests share: the scheduler, and threads that tokenise within a token limit and a deadline.

A text's length in tokens is unknown before it is tokenised, so long texts are read part by part and given up at the limit.
The steps of a request are `Call` in `service/tasks/task.py`.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from threading import Lock
from typing import TypeVar

import numpy as np

from bert.encoding import Pieces
from bert.errors import (
    MAX_FIELD_ERRORS,
    QUEUE_RULE,
    DeadlineExceededError,
    FieldError,
    RequestTooLargeError,
)
from bert.tasks.registry import TASKS
from bert.tasks.task import Reads
from bert.tokenizer import Tokenizer
from service.engine.models import Model
from service.pipeline.early_refusal import EarlyRefusal
from service.pipeline.inputs import RequestContext
from service.pipeline.label_vectors import LabelVectors
from service.pipeline.text_parts import PART_CHARACTERS, TEXT_CHARACTERS, Part, cost, join_parts, split_texts
from service.scheduling.dispatcher import Dispatcher, request_of
from service.scheduling.fair_queue import NO_LANE, Batch, FairQueue, Lane, Throughput
from service.scheduling.scheduler_protocol import SchedulerProtocol

INLINE_TEXTS, INLINE_CHARACTERS = 8, 1_000
"""Maximum size of a request that is tokenised on the event loop, within 0.5 ms; handing it to a thread costs twice that."""
INLINE_ENCODINGS = 64
"""Maximum texts whose encodings are built on the event loop, within 2 ms."""
INLINE_TOKENS = 2_000
"""Maximum tokens of a request whose outputs are decoded on the event loop."""
INLINE_TEXT_CHARACTERS = 2**15
"""Maximum characters of texts whose positions the event loop itself works out, within 2 ms. Few tokens may have many."""
INLINE_SPLIT_CHARACTERS = 2**16
"""Maximum characters that are split into parts on the event loop, within 1 ms."""
HELPER_THREADS = 2
"""Threads that parse large bodies, decode and serialise. Most of that holds the interpreter's lock: more would not help."""
WARM_UP_TEXT = "a"
"""Short enough for every model and vocabulary, as a question too."""
UNKNOWN = "the tokenizer does not know {unknown} of {pieces} pieces ({name}), so the model reads little of this text"

FIRST_CHARACTER_S = 1e-6
"""Seconds per character in one thread, assumed until parts have been timed."""
CHARACTERS_RULE = f"at most {{}} may wait to be tokenised, where a text or word counts {TEXT_CHARACTERS} more"
NAME = "tokenize"
"""Model name of all tokenizers, which share the queue."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_short_text(texts: Sequence[str]) -> bool:
    """Tell whether the event loop itself may work out positions in these texts."""
    return sum(map(len, texts)) <= INLINE_TEXT_CHARACTERS


class TokenizeQueue(Dispatcher):
    """Tokenises the parts of requests' texts in a fixed number of threads, with the rules of the engine's queue.

    Sizes are in characters. A text of 200,000 characters is tokenised part by part, so a later sentence waits only for the
    running part.
    """

    def __init__(
        self, threads: int, max_characters: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the threads; at most `max_characters` wait."""
        self._throughput = Throughput(0.0, FIRST_CHARACTER_S, PART_CHARACTERS, threads)
        throughput, budgets = {NAME: self._throughput}, {NAME: PART_CHARACTERS}
        queue = FairQueue(max_characters, budgets, throughput, threads, unit="characters")
        super().__init__(queue, threads, clock, NAME)

    async def run(
        self,
        tokenize: Callable[[Item], Result],
        parts: Sequence[Item],
        sizes: Sequence[int],
        deadline: float = float("inf"),
        lane: Lane = NO_LANE,
    ) -> list[Result]:
        """Return `tokenize(part)` for each part; `sizes` are their characters.

        Raises RequestTooLargeError if they could never be queued, QueueFullError if they do not fit or would be late,
        DeadlineExceededError, NotReadyError, and what `tokenize` raises.
        """
        if (size := sum(sizes)) > (most := self.queue.max_tokens):
            raise RequestTooLargeError(size, most, CHARACTERS_RULE, "characters")
        calls = [partial(tokenize, part) for part in parts]
        return (await self._run(NAME, calls, sizes, deadline, lane=lane)).results

    def _start(self, batch: Batch) -> None:
        """Send a batch to a thread, which calls `_finish` on the loop."""
        self._take(batch, 1)
        work = [(request_of(item.job), request_of(item.job).sequences) for item in batch.items]
        loop = asyncio.get_running_loop()

        def task() -> None:
            start, errors = self._clock(), dict[int, Exception]()
            for number, (request, calls) in enumerate(work):
                item = batch.items[number]
                try:
                    for index in range(item.start, item.stop):
                        if not request.cancelled:
                            request.results[index] = calls[index]()
                except Exception as error:
                    errors[number] = error
            loop.call_soon_threadsafe(self._finish, batch, errors, self._clock() - start)

        self._tasks.put(task)

    def _finish(self, batch: Batch, errors: dict[int, Exception], seconds: float) -> None:
        self._release(batch, 1)
        self._throughput.learn(batch.work, seconds)
        for number, item in enumerate(batch.items):
            if number in errors:
                self._fail(request_of(item.job), errors[number])
            else:
                self._count_results(request_of(item.job), item.texts)
        self._dispatch()


class Threads:
    """Threads for work that would block the event loop."""

    def __init__(self, tokenizer_threads: int, max_characters: int) -> None:
        """Start the threads; at most `max_characters` wait to be tokenised."""
        self.tokenize = TokenizeQueue(tokenizer_threads, max_characters)
        self._helpers = ThreadPoolExecutor(HELPER_THREADS, "helper")

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run a function in a helper thread."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function)

    async def close(self) -> None:
        """End the threads."""
        await self.tokenize.close()
        await asyncio.get_running_loop().run_in_executor(None, self._helpers.shutdown)


class Pipeline:
    """Runs requests through loaded models."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        threads: int,
        max_characters: int,
        max_response_bytes: int,
        max_texts: int = sys.maxsize,
        label_vectors: LabelVectors | None = None,
    ) -> None:
        """Tokenise in `threads` threads; at most `max_characters` wait for them.

        A request of more than `max_texts` texts, or with a response of more than `max_response_bytes`, is refused with an
        InvalidRequestError.
        """
        self.scheduler, self.max_response_bytes, self.max_texts = scheduler, max_response_bytes, max_texts
        self.threads = Threads(threads, max_characters)
        self.early_refusal = EarlyRefusal()
        self.label_vectors = label_vectors or LabelVectors()

    async def warm_up(self, model: Model, deadline: float) -> None:
        """Run one short text through a model, whatever its task. `deadline` is on `time.monotonic`."""
        task, spec, tokenizer = TASKS[model.spec.task], model.spec, model.tokenizer
        pieces = tokenizer.pieces([WARM_UP_TEXT] * (1 if task.reads(spec) is Reads.TEXT else 2))
        await self.scheduler.submit(model.id, task.sample(tokenizer, pieces, spec), deadline)

    async def run_in_thread(self, function: Callable[[], Result]) -> Result:
        """Run a function that would block the event loop."""
        return await self.threads.run(function)

    async def close(self) -> None:
        """End the threads."""
        await self.threads.close()


@dataclass(slots=True)
class BoundedTokenizer:
    """Tokenises the texts of one request within its limits."""

    request: RequestContext
    tokenizer: Tokenizer
    max_tokens: int
    """Maximum tokens of the whole request."""
    threads: Threads
    only_ids: bool = False
    """Leave out the pieces' offsets, for tasks that never ask where a piece lies in its text."""
    limit_rule: str = QUEUE_RULE
    """Rule behind `max_tokens`, for the error's message."""
    tokens: int = 0
    """Tokens counted so far."""
    has_short_texts: bool = True
    _lock: Lock = field(default_factory=Lock)

    def check_deadline(self) -> None:
        """Raise DeadlineExceededError if the deadline has passed."""
        if time.monotonic() > self.request.deadline:
            raise DeadlineExceededError(self.request.timeout_ms)

    def check_tokens(self, tokens: int) -> None:
        """Raise RequestTooLargeError if that many tokens exceed the limit."""
        if tokens > self.max_tokens:
            raise RequestTooLargeError(tokens, self.max_tokens, self.limit_rule)

    async def pieces(self, texts: Sequence[str], max_pieces: int | None = None) -> list[Pieces]:
        """Return each text's pieces; those beyond `max_pieces` of a text may be missing and are not counted.

        Raises RequestTooLargeError, DeadlineExceededError, InputError for text that is not Unicode, and what TokenizeQueue
        raises.
        """
        characters = sum(map(len, texts))
        self.has_short_texts = characters <= INLINE_TEXT_CHARACTERS
        if len(texts) <= INLINE_TEXTS and characters <= INLINE_CHARACTERS:
            return self._tokenize(Part(0, list(texts)), max_pieces)
        if cost(texts) <= INLINE_SPLIT_CHARACTERS:
            parts = split_texts(texts, self.tokenizer)
        else:
            parts = await self.threads.run(lambda: split_texts(texts, self.tokenizer))
        if max_pieces is None:
            return join_parts(parts, await self._tokenize_all(parts, None))
        return await self._beginnings(parts, max_pieces)

    def note_unknown(self, pieces: Sequence[Pieces], where: Callable[[int], str]) -> None:
        """Warn of texts whose pieces the tokenizer mostly does not know; `where` names the text of an index.

        A request has at most MAX_FIELD_ERRORS warnings.
        """
        unk_id = self.tokenizer.unk_id
        if unk_id is None:
            return
        name = self.tokenizer.id_to_token(unk_id)
        for index, unknown in islice(
            mostly_unknown(pieces, unk_id), MAX_FIELD_ERRORS - len(self.request.warnings)
        ):
            message = UNKNOWN.format(unknown=unknown, pieces=len(pieces[index]), name=name)
            self.request.warnings.append(FieldError(where(index), message))

    async def build(self, texts: int, function: Callable[[], Result]) -> Result:
        """Build the encodings of that many texts, in a thread if that takes long."""
        if texts <= INLINE_ENCODINGS and self.tokens <= INLINE_TOKENS and self.has_short_texts:
            return function()
        return await self.threads.run(function)

    async def _tokenize_all(self, parts: Sequence[Part], max_pieces: int | None) -> list[list[Pieces]]:
        sizes = [part.size for part in parts]
        return await self.threads.tokenize.run(
            lambda part: self._tokenize(part, max_pieces),
            parts,
            sizes,
            self.request.deadline,
            self.request.lane,
        )

    async def _beginnings(self, parts: Sequence[Part], max_pieces: int) -> list[Pieces]:
        """Read the first part of each text, then twice as much of texts that need more, and so on."""
        read, found, lengths = list[Part](), list[list[Pieces]](), Counter[int]()
        by_text = {text: list(group) for text, group in groupby(parts, key=lambda part: part.text)}
        start = 0
        while due := [part for group in by_text.values() for part in group[start : 2 * start + 1]]:
            read += due
            found += await self._tokenize_all(due, max_pieces)
            for part, pieces in zip(due, found[-len(due) :], strict=True):
                before = lengths[part.text]
                lengths[part.text] += max_pieces if part.is_whole else len(pieces[0])
                if not part.is_whole:
                    self.tokens += min(lengths[part.text], max_pieces) - min(before, max_pieces)
            self.check_tokens(self.tokens)
            by_text = {text: group for text, group in by_text.items() if lengths[text] < max_pieces}
            start = 2 * start + 1
        return join_parts(read, found)

    def _tokenize(self, part: Part, max_pieces: int | None) -> list[Pieces]:
        """Tokenise a part, in a thread or on the loop; count its tokens unless later parts decide how many are used."""
        self.check_deadline()
        found = self.tokenizer.pieces(part.texts, only_ids=self.only_ids and part.is_whole)
        if max_pieces is None or part.is_whole:
            tokens = sum(len(p) if max_pieces is None else min(len(p), max_pieces) for p in found)
            with self._lock:
                self.tokens += tokens
            self.check_tokens(self.tokens)
        return found


def mostly_unknown(pieces: Sequence[Pieces], unk_id: int) -> Iterator[tuple[int, int]]:
    """Yield the index and the unknown pieces of each text that has more unknown pieces than others.

    One look at all texts says mostly that no piece is unknown: 512 short ones take 0.2 ms, one by one they take 2 ms.
    """
    if not pieces or not (np.concatenate([each.ids for each in pieces]) == unk_id).any():
        return
    for index, each in enumerate(pieces):
        unknown = int(np.count_nonzero(each.ids == unk_id))
        if 2 * unknown > len(each):
            yield index, unknown


def window_tokens(pieces: int, max_tokens: int, stride: int, around: int) -> int:
    """Return the tokens of all windows that `Tokenizer.windows` would make; 0 if it finds no room.

    `around` is the number of special tokens and of a question's pieces in each window.
    """
    room = max_tokens - around
    if room < 1:
        return 0
    shared = min(stride, room // 2)
    more = max(0, -(-(pieces - room) // (room - shared)))
    return pieces + more * shared + (more + 1) * around
