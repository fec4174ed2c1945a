"""Tokenisation in threads, with the admission and fairness rules of the engine's queue; sizes are in characters.

A text of 200,000 characters is read a part at a time, so a sentence that comes later is read after the part that runs.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bert.errors import DeadlineExceededError, NotReadyError
from service.scheduling.fair_queue import Batch, FairQueue
from service.scheduling.line import Job
from service.scheduling.throughput import Speed

PART_CHARACTERS = 2**13
"""Size of a part, and of a batch: 10 ms of work, 60 ms where each character is a token."""
FIRST_CHARACTER_S = 1e-6
"""Seconds for a character in one thread, until parts have been timed."""
NAME = "tokenize"
"""All tokenizers share the queue, as one model."""

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Reading(Job):
    """One request's parts, what reads one, and what they gave."""

    read: Callable[[Any], Any] = lambda _: None
    parts: Sequence[Any] = ()
    results: list[Any] = field(default_factory=list)
    left: int = 0
    """Parts whose result is still missing."""
    received: float = 0.0
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TokenizeQueue:
    """Reads the parts of requests' texts in a fixed number of threads."""

    def __init__(
        self, threads: int, max_characters: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the threads; at most `max_characters` wait."""
        speed = Speed(0.0, FIRST_CHARACTER_S, PART_CHARACTERS, threads)
        self._queue = FairQueue(
            max_characters, {NAME: PART_CHARACTERS}, {NAME: speed}, threads, unit="characters"
        )
        self._speed, self._clock = speed, clock
        self._threads = ThreadPoolExecutor(threads, "tokenize")
        self._slots = self._free = threads
        self._long_running = 0
        self._waiting: set[Reading] = set()
        self._closed = False

    async def run(
        self,
        read: Callable[[Part], Result],
        parts: Sequence[Part],
        sizes: Sequence[int],
        deadline: float = float("inf"),
    ) -> list[Result]:
        """Return what `read` gives for each part; `sizes` are their characters.

        Raises QueueFullError, with nothing read, if they do not fit or would be done too late, and what `read` raises.
        """
        if self._closed:
            raise NotReadyError("the service is stopping")
        now, count = self._clock(), len(parts)
        reading = Reading(
            NAME, sizes, deadline, read=read, parts=parts, results=[None] * count, left=count, received=now
        )
        self._queue.offer(reading, now, engine_is_idle=self._free == self._slots)
        self._waiting.add(reading)
        try:
            self._dispatch()
            await reading.done
        finally:
            self._waiting.discard(reading)
            self._queue.withdraw(reading)
        return reading.results

    async def close(self) -> None:
        """Refuse what still waits, and end the threads."""
        self._closed = True
        for reading in list(self._waiting):
            self._fail(reading, NotReadyError("the service is stopping"))
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _dispatch(self) -> None:
        """Give each free thread a batch of parts while there is one."""
        while self._free and (batch := self._queue.take(self._clock(), self._free, self._long_running)):
            self._free -= 1
            self._long_running += batch.is_long
            loop = asyncio.get_running_loop()
            self._threads.submit(self._read, batch, loop)
        now = self._clock()
        for job in self._queue.expired:
            reading = _reading_of(job)
            late = DeadlineExceededError(1000 * (reading.deadline - reading.received))
            self._fail(reading, late if reading.deadline <= now else self._queue.refusal(reading, now))
        self._queue.expired.clear()

    def _read(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Read a batch's parts, in a thread."""
        start, errors = self._clock(), dict[int, Exception]()
        for number, share in enumerate(batch.shares):
            reading = _reading_of(share.job)
            try:
                for index in range(share.start, share.stop):
                    if not reading.gone:
                        reading.results[index] = reading.read(reading.parts[index])
            except Exception as error:
                errors[number] = error
        loop.call_soon_threadsafe(self._finish, batch, errors, self._clock() - start)

    def _finish(self, batch: Batch, errors: dict[int, Exception], seconds: float) -> None:
        self._free += 1
        self._long_running -= batch.is_long
        self._speed.learn(batch.tokens, seconds)
        for number, share in enumerate(batch.shares):
            reading = _reading_of(share.job)
            reading.left -= share.stop - share.start
            if number in errors:
                self._fail(reading, errors[number])
            elif reading.left == 0 and not reading.done.done():
                reading.done.set_result(None)
        if not self._closed:
            self._dispatch()

    def _fail(self, reading: Reading, error: Exception) -> None:
        self._queue.withdraw(reading)
        if not reading.done.done():
            reading.done.set_exception(error)


def _reading_of(job: Job) -> Reading:
    assert isinstance(job, Reading)
    return job
