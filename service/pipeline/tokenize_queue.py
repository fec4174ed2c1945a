"""Tokenisation in threads, with the admission and fairness rules of the engine's queue; sizes are in characters.

A text of 200,000 characters is tokenised part by part, so a later sentence waits only for the running part.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bert.errors import DeadlineExceededError, NotReadyError
from service.pipeline.text_parts import PART_CHARACTERS
from service.scheduling.batch import Batch
from service.scheduling.fair_queue import FairQueue
from service.scheduling.job_queue import Job
from service.scheduling.throughput import Throughput

FIRST_CHARACTER_S = 1e-6
"""Seconds per character in one thread, assumed until parts have been timed."""
NAME = "tokenize"
"""Model name of all tokenizers, which share the queue."""

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class TokenizeJob(Job):
    """One request's parts, the function that tokenises one, and the results."""

    tokenize: Callable[[Any], Any] = lambda _: None
    parts: Sequence[Any] = ()
    results: list[Any] = field(default_factory=list)
    left: int = 0
    """Number of parts without a result."""
    received: float = 0.0
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TokenizeQueue:
    """Tokenises the parts of requests' texts in a fixed number of threads."""

    def __init__(
        self, threads: int, max_characters: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the threads; at most `max_characters` wait."""
        throughput = Throughput(0.0, FIRST_CHARACTER_S, PART_CHARACTERS, threads)
        self._queue = FairQueue(
            max_characters, {NAME: PART_CHARACTERS}, {NAME: throughput}, threads, unit="characters"
        )
        self._throughput, self._clock = throughput, clock
        self._threads = ThreadPoolExecutor(threads, "tokenize")
        self._slots = self._free = threads
        self._long_running = 0
        self._waiting: set[TokenizeJob] = set()
        self._closed = False

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
        if self._closed:
            raise NotReadyError("the service is stopping")
        now, count = self._clock(), len(parts)
        job = TokenizeJob(
            NAME,
            sizes,
            deadline,
            tokenize=tokenize,
            parts=parts,
            results=[None] * count,
            left=count,
            received=now,
        )
        self._queue.try_admit(job, now, engine_is_idle=self._free == self._slots)
        self._waiting.add(job)
        try:
            self._dispatch()
            await job.done
        finally:
            self._waiting.discard(job)
            self._queue.cancel(job)
        return job.results

    async def close(self) -> None:
        """Fail the waiting jobs, and end the threads."""
        self._closed = True
        for job in list(self._waiting):
            self._fail(job, NotReadyError("the service is stopping"))
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _dispatch(self) -> None:
        """Give each free thread a batch of parts while there is one."""
        while self._free and (batch := self._queue.next_batch(self._clock(), self._free, self._long_running)):
            self._free -= 1
            self._long_running += batch.is_long
            loop = asyncio.get_running_loop()
            self._threads.submit(self._run_batch, batch, loop)
        now = self._clock()
        for expired in self._queue.expired:
            job = _tokenize_job(expired)
            late = DeadlineExceededError(1000 * (job.deadline - job.received))
            self._fail(job, late if job.deadline <= now else self._queue.too_late_error(job, now))
        self._queue.expired.clear()

    def _run_batch(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Tokenise a batch's parts, in a thread."""
        start, errors = self._clock(), dict[int, Exception]()
        for number, item in enumerate(batch.items):
            job = _tokenize_job(item.job)
            try:
                for index in range(item.start, item.stop):
                    if not job.cancelled:
                        job.results[index] = job.tokenize(job.parts[index])
            except Exception as error:
                errors[number] = error
        loop.call_soon_threadsafe(self._finish, batch, errors, self._clock() - start)

    def _finish(self, batch: Batch, errors: dict[int, Exception], seconds: float) -> None:
        self._free += 1
        self._long_running -= batch.is_long
        self._throughput.learn(batch.tokens, seconds)
        for number, item in enumerate(batch.items):
            job = _tokenize_job(item.job)
            job.left -= item.stop - item.start
            if number in errors:
                self._fail(job, errors[number])
            elif job.left == 0 and not job.done.done():
                job.done.set_result(None)
        if not self._closed:
            self._dispatch()

    def _fail(self, job: TokenizeJob, error: Exception) -> None:
        self._queue.cancel(job)
        if not job.done.done():
            job.done.set_exception(error)


def _tokenize_job(job: Job) -> TokenizeJob:
    assert isinstance(job, TokenizeJob)
    return job
