"""Tokenisation in threads, with the admission and fairness rules of the engine's queue; sizes are in characters.

A text of 200,000 characters is tokenised part by part, so a later sentence waits only for the running part.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from service.pipeline.text_parts import PART_CHARACTERS
from service.scheduling.dispatcher import Dispatcher, request_of
from service.scheduling.fair_queue import FairQueue
from service.scheduling.jobs import Batch
from service.scheduling.throughput import Throughput

FIRST_CHARACTER_S = 1e-6
"""Seconds per character in one thread, assumed until parts have been timed."""
NAME = "tokenize"
"""Model name of all tokenizers, which share the queue."""

Part = TypeVar("Part")
Result = TypeVar("Result")


class TokenizeQueue(Dispatcher):
    """Tokenises the parts of requests' texts in a fixed number of threads."""

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
        tokenize: Callable[[Part], Result],
        parts: Sequence[Part],
        sizes: Sequence[int],
        deadline: float = float("inf"),
    ) -> list[Result]:
        """Return `tokenize(part)` for each part; `sizes` are their characters.

        Raises QueueFullError, with nothing tokenised, if they do not fit or would be late, and what `tokenize` raises.
        """
        calls = [partial(tokenize, part) for part in parts]
        return (await self._run(NAME, calls, sizes, deadline)).results

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
