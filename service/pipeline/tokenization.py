"""Texts to pieces within bounds: no more tokens than may ever be queued, and no further than the deadline.

A text's length in tokens is not known before it is tokenised, so large ones are read a part after the other and given
up at the bound. Parts end where BERT splits anyway: what they give is exactly what the whole text gives.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from threading import Lock
from typing import TypeVar

import numpy as np

from bert.errors import QUEUE_RULE, DeadlineExceededError, RequestTooLargeError
from bert.tokenizer import Pieces, Tokenizer
from service.pipeline import tokenize_queue
from service.pipeline.request_context import RequestContext
from service.pipeline.tokenize_queue import TokenizeQueue

INLINE_TEXTS, INLINE_CHARACTERS = 8, 1_000
"""A request of no more is tokenised on the event loop, in half a millisecond at most: for a sentence a thread's hand-over
costs twice as much as the work."""
INLINE_BUILT = 64
"""Texts of which the model's sequences are built on the event loop, in 2 ms at most."""
INLINE_TOKENS = 2_000
"""Results of fewer tokens are decoded on the event loop: a thread's hand-over costs more than the work."""
INLINE_PLANNED = 2**16
"""Characters that are put into parts on the event loop, in a millisecond at most."""
HELPERS = 2
"""Threads that parse large bodies, decode and serialise. Most of that holds the interpreter's lock: more would not help."""
TEXT_CHARACTERS = 64
"""Fixed cost of a text, in characters."""

SPLIT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""Before each of these BERT's tokenizer begins anew: ASCII white space and punctuation."""
SPLIT_CHINESE = re.compile(r"[\t\n\r !-/:-@\[-`{-~\u4e00-\u9fff]")
"""And before each Chinese character, with tokenizers that part them."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Part:
    """Whole texts that are tokenised together, or a part of a long one."""

    text: int
    """Index of the first of its texts."""
    texts: list[str]
    start: int = 0
    """First character of a part in its text."""
    is_whole: bool = True

    @property
    def size(self) -> int:
        """Return what it costs, in characters."""
        return sum(map(len, self.texts)) + TEXT_CHARACTERS * len(self.texts)


class Threads:
    """Threads for work that would hold up the event loop."""

    def __init__(self, tokenizer_threads: int, max_characters: int) -> None:
        """Start the threads; at most `max_characters` wait to be tokenised."""
        self.tokenize = TokenizeQueue(tokenizer_threads, max_characters)
        self._helpers = ThreadPoolExecutor(HELPERS, "helper")

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run a function in a thread that does not tokenise."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function)

    async def close(self) -> None:
        """End the threads."""
        await self.tokenize.close()
        await asyncio.get_running_loop().run_in_executor(None, self._helpers.shutdown)


@dataclass(slots=True)
class Reader:
    """Tokenises the texts of one request."""

    call: RequestContext
    tokenizer: Tokenizer
    max_tokens: int
    """Of the whole request; no queue has room for more."""
    threads: Threads
    only_ids: bool = False
    """Whether the task never asks where pieces lie in their texts."""
    limit_rule: str = QUEUE_RULE
    """Rule behind `max_tokens`, for the error's message."""
    tokens: int = 0
    """Read so far."""
    _lock: Lock = field(default_factory=Lock)

    def check_deadline(self) -> None:
        """Raise DeadlineExceededError after it: nobody waits for what this thread does."""
        if time.monotonic() > self.call.deadline:
            raise DeadlineExceededError(self.call.timeout_ms)

    def check_tokens(self, tokens: int) -> None:
        """Raise RequestTooLargeError if a request has too many tokens."""
        if tokens > self.max_tokens:
            raise RequestTooLargeError(tokens, self.max_tokens, self.limit_rule)

    async def pieces(self, texts: Sequence[str], enough: int | None = None) -> list[Pieces]:
        """Return each text's pieces.

        Of a text's pieces `enough` may do: what lies beyond them counts for nothing and may be left unread. Raises
        RequestTooLargeError, DeadlineExceededError, InputError for text that is not Unicode, and
        what TokenizeQueue raises.
        """
        characters = sum(map(len, texts))
        if len(texts) <= INLINE_TEXTS and characters <= INLINE_CHARACTERS:
            return self._read(Part(0, list(texts)), enough)
        if characters + TEXT_CHARACTERS * len(texts) <= INLINE_PLANNED:
            parts = self._parts(texts)
        else:
            parts = await self.threads.run(lambda: self._parts(texts))
        if enough is None:
            return _assembled(parts, await self._read_all(parts, None))
        return await self._beginnings(parts, enough)

    async def build(self, texts: int, function: Callable[[], Result]) -> Result:
        """Make what the model reads of so many texts; in a thread if that takes long."""
        if texts <= INLINE_BUILT and self.tokens <= INLINE_TOKENS:
            return function()
        return await self.threads.run(function)

    async def _read_all(self, parts: Sequence[Part], enough: int | None) -> list[list[Pieces]]:
        sizes = [part.size for part in parts]
        return await self.threads.tokenize.run(
            lambda part: self._read(part, enough), parts, sizes, self.call.deadline
        )

    async def _beginnings(self, parts: Sequence[Part], enough: int) -> list[Pieces]:
        """Read the first part of each text, then twice as much of those where that is not enough, and so on."""
        read, found, lengths = list[Part](), list[list[Pieces]](), Counter[int]()
        by_text = {text: list(group) for text, group in groupby(parts, key=lambda part: part.text)}
        start = 0
        while due := [part for group in by_text.values() for part in group[start : 2 * start + 1]]:
            read += due
            found += await self._read_all(due, enough)
            for part, pieces in zip(due, found[-len(due) :], strict=True):
                before = lengths[part.text]
                lengths[part.text] += enough if part.is_whole else len(pieces[0])
                if not part.is_whole:
                    self.tokens += min(lengths[part.text], enough) - min(before, enough)
            self.check_tokens(self.tokens)
            by_text = {text: group for text, group in by_text.items() if lengths[text] < enough}
            start = 2 * start + 1
        return _assembled(read, found)

    def _read(self, part: Part, enough: int | None) -> list[Pieces]:
        """Tokenise a part, in a thread or on the loop; count its tokens, unless later parts decide how many are kept."""
        self.check_deadline()
        found = self.tokenizer.pieces(part.texts, only_ids=self.only_ids and part.is_whole)
        if enough is None or part.is_whole:
            tokens = sum(len(p) if enough is None else min(len(p), enough) for p in found)
            with self._lock:
                self.tokens += tokens
            self.check_tokens(self.tokens)
        return found

    def _parts(self, texts: Sequence[str]) -> list[Part]:
        """Put neighbours together up to PART_CHARACTERS, and cut what is longer."""
        parts, group, size = list[Part](), list[str](), 0
        for index, text in enumerate(texts):
            needs = len(text) + TEXT_CHARACTERS
            if group and size + needs > tokenize_queue.PART_CHARACTERS:
                parts.append(Part(index - len(group), group))
                group, size = [], 0
            if needs > tokenize_queue.PART_CHARACTERS:
                parts += self._cut(index, text)
            else:
                group.append(text)
                size += needs
        return [*parts, Part(len(texts) - len(group), group)] if group else parts

    def _cut(self, index: int, text: str) -> Iterator[Part]:
        """Cut a text where its pieces do not notice; not at all where the tokenizer is not BERT's."""
        start = 0
        if self.tokenizer.splits_at_spaces:
            split = SPLIT_CHINESE if self.tokenizer.splits_chinese else SPLIT
            while cut := split.search(text, start + tokenize_queue.PART_CHARACTERS):
                yield Part(index, [text[start : cut.start()]], start, is_whole=False)
                start = cut.start()
        yield Part(index, [text[start:]], start, is_whole=False)


def _assembled(parts: Sequence[Part], found: Sequence[Sequence[Pieces]]) -> list[Pieces]:
    """Return the pieces of each text, in their order, from those of its parts, in any."""
    texts = list[list[tuple[int, Pieces]]]()
    in_order = sorted(zip(parts, found, strict=True), key=lambda read: (read[0].text, read[0].start))
    for part, pieces in in_order:
        if part.start:
            texts[-1].append((part.start, pieces[0]))
        else:
            texts += [[(0, each)] for each in pieces]
    return [_joined([p for _, p in text], [start for start, _ in text]) for text in texts]


def window_tokens(pieces: int, max_tokens: int, stride: int, prefix: int | None = None) -> int:
    """Return the tokens of all windows that `Tokenizer.windows` would make, without making them.

    `prefix` is the number of a question's pieces. 0 where it would find no room.
    """
    around = 2 if prefix is None else prefix + 3
    room = max_tokens - around
    if room < 1:
        return 0
    shared = min(stride, room // 2)
    more = max(0, -(-(pieces - room) // (room - shared)))
    return pieces + more * shared + (more + 1) * around


def _joined(parts: Sequence[Pieces], starts: Sequence[int]) -> Pieces:
    """Put the pieces of a text's parts together; `starts` are the parts' first characters."""
    if len(parts) == 1:
        return parts[0]
    words = accumulate((int(part.word_ids.max(initial=-1)) + 1 for part in parts), initial=0)
    moved = list(zip(parts, starts, words, strict=False))
    return Pieces(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.offsets + np.int32(start) for part, start, _ in moved]),
        np.concatenate([part.word_ids + np.int32(first) for part, _, first in moved]),
    )
