"""The event loop's side of a fair queue: gives free slots, a thread each, the batches that the queue forms.

The scheduler runs engines on its slots, and the tokenisation of long texts runs the tokenizer.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any

from bert.errors import DeadlineExceededError, NotReadyError
from service.scheduling.fair_queue import NO_LANE, Batch, FairQueue, Job, Lane

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class QueuedRequest(Job):
    """A job with its sequences, their results so far, and the future that its caller awaits."""

    sequences: Sequence[Any] = ()
    results: list[Any] = field(default_factory=list)
    left: int = 0
    """Number of sequences without a result."""
    submitted: float = 0.0
    started: float | None = None
    finished: float = 0.0
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Dispatcher(ABC):
    """Gives the batches that a fair queue forms to free slots. Each slot is a thread; all else runs on the event loop."""

    def __init__(self, queue: FairQueue, slots: int, clock: Clock, thread_name: str) -> None:
        """Start the threads."""
        self.queue = queue
        self._clock = clock
        self._slots = self._free = slots
        # Bare threads on a queue: an executor makes a Future with a lock of its own for each batch.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._serve, name=f"{thread_name}_{n}", daemon=True) for n in range(slots)
        ]
        for thread in self._threads:
            thread.start()
        self._dispatching: asyncio.Handle | None = None
        self._long_running = 0
        """Number of slots that run documents."""
        self._waiting: set[QueuedRequest] = set()
        self._closed = False
        self._ends: dict[int, float] = {}
        """Time at which each running batch should end, by its id."""

    @abstractmethod
    def _start(self, batch: Batch) -> None:
        """Put a task that runs a batch in `_tasks`, and `_take` its slots."""

    async def close(self) -> None:
        """Refuse waiting requests, and end the threads when their batches are done."""
        self._closed = True
        for request in list(self._waiting):
            self._fail(request, NotReadyError("the service is stopping"))
        for _ in self._threads:
            self._tasks.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._join)

    async def _run(
        self,
        model: str,
        sequences: Sequence[Any],
        sizes: Sequence[int],
        deadline: float,
        *,
        retry: bool = False,
        lane: Lane = NO_LANE,
    ) -> QueuedRequest:
        """Queue a request and return it with its results; a `retry` is not refused."""
        if self._closed:
            raise NotReadyError("the service is stopping")
        now, count = self._clock(), len(sequences)
        request = QueuedRequest(
            model,
            sizes,
            deadline,
            lane=lane,
            sequences=sequences,
            results=[None] * count,
            left=count,
            submitted=now,
        )
        if retry:
            self.queue.admit(request)
        else:
            busy_s = 0.0 if self._free else max(0.0, min(self._ends.values()) - now)
            self.queue.try_admit(request, now, engine_is_idle=self._free == self._slots, busy_s=busy_s)
        self._waiting.add(request)
        try:
            if self._dispatching is None and self._free:
                # In the loop's next turn, so that requests that arrived together share a batch.
                self._dispatching = asyncio.get_running_loop().call_soon(self._dispatch)
            await request.done
        finally:
            self._waiting.discard(request)
            self.queue.cancel(request)
            request.sequences = ()
        return request

    def _dispatch(self) -> None:
        """Give each free slot a batch, and fail the requests that the queue dropped."""
        self._dispatching = None
        while (
            self._free
            and not self._closed
            and (batch := self.queue.next_batch(self._clock(), self._free, self._long_running))
        ):
            self._long_running += batch.is_long
            self._start(batch)
        now = self._clock()
        for job in self.queue.expired:
            request = request_of(job)
            is_over = request.deadline <= now
            over = DeadlineExceededError(1000 * (request.deadline - request.submitted))
            self._fail(request, over if is_over else self.queue.too_late_error(request, now))
        self.queue.expired.clear()

    def _take(self, batch: Batch, slots: int) -> None:
        """Give slots to a batch."""
        self._free -= slots
        self._ends[id(batch)] = self._clock() + self.queue.seconds(batch) / slots

    def _release(self, batch: Batch, slots: int) -> None:
        """Free the slots of a batch that ended."""
        self._free += slots
        del self._ends[id(batch)]
        self._long_running -= batch.is_long

    def _count_results(self, request: QueuedRequest, count: int) -> None:
        """Complete a request that has all its results."""
        request.left -= count
        if request.left == 0 and not request.done.done():
            request.finished = self._clock()
            request.done.set_result(None)

    def _fail(self, request: QueuedRequest, error: Exception) -> None:
        self.queue.cancel(request)
        if not request.done.done():
            request.done.set_exception(error)

    def _serve(self) -> None:
        """Run tasks on a slot's thread until one is None."""
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds an engine, which may be replaced

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()


def request_of(job: Job) -> QueuedRequest:
    """Return the job as a request: a dispatcher queues nothing else."""
    assert isinstance(job, QueuedRequest)
    return job
