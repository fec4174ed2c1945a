"""The scheduler: `submit(model, encodings) → outputs`. Gives free engine slots the batches that the fair queue forms.

All of it runs on the event loop except the engine's `run`, which has one thread per slot. All models share the slots, so
no more threads are busy than the slot layout allows. A batch with nothing else waiting or running may take several slots,
and their cores, at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread

import numpy as np

from bert.errors import DeadlineExceededError, EngineError, NotReadyError
from bert.packing import joined
from bert.tokenizer import Encoding
from service.engine.engine_protocol import Engine, Floats, Outputs
from service.scheduling.batch import Batch
from service.scheduling.fair_queue import FairQueue
from service.scheduling.job_queue import Job
from service.scheduling.scheduler_protocol import SubmitResult

Clock = Callable[[], float]
STUCK_AFTER_S = 60.0
"""Seconds after which a batch counts as stuck, where no cost curve gives a better limit."""
SUSPECT_AFTER = 3
"""Failures in a row after which a model is suspected to be broken."""


@dataclass(slots=True, eq=False)
class QueuedRequest(Job):
    """A job with its encodings, its outputs so far, and the future that its caller awaits."""

    encodings: Sequence[Encoding] = ()
    outputs: list[Floats | None] = field(default_factory=list)
    left: int = 0
    """Number of sequences without an output."""
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    submitted: float = 0.0
    started: float | None = None
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outputs of a batch, or the error in their place, and the engine's seconds."""

    outputs: Outputs | None
    error: Exception | None
    seconds: float


@dataclass(frozen=True, slots=True)
class MultiSlotEngine:
    """A model's engine with the threads of several slots."""

    engine: Engine
    slots: int
    """Number of slots that a batch takes."""
    from_tokens: int
    """Smallest batch, in tokens, that runs faster on it than on one slot."""


BatchObserver = Callable[[str, int, int, float, float], None]
"""Called with model, tokens, texts, padding ratio and seconds of each batch that ran."""


class Scheduler:
    """Runs requests on a fixed number of engine slots."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        queue: FairQueue,
        slots: int,
        *,
        multi_slot: Mapping[str, MultiSlotEngine] | None = None,
        observe: BatchObserver = lambda *_: None,
        clock: Clock = time.monotonic,
        stuck_after_s: Callable[[], float] = lambda: STUCK_AFTER_S,
    ) -> None:
        """Start the threads. The queue's `throughput` learns from each batch that runs on one slot."""
        self.stuck_after_s = stuck_after_s
        self._multi_slot = multi_slot or {}
        self.queue = queue
        self._engines, self._observe, self._clock = engines, observe, clock
        self._slots = self._free = slots
        # Bare threads on a queue: an executor makes a Future with a lock of its own for each batch.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, name=f"engine_{n}", daemon=True) for n in range(slots)]
        for thread in self._threads:
            thread.start()
        self._dispatching: asyncio.Handle | None = None
        self._failures: Counter[str] = Counter()
        self._running: dict[int, float] = {}
        """Start time of each running batch, by its id."""
        self._long_running = 0
        """Number of slots that run documents."""
        self._waiting: set[QueuedRequest] = set()
        self._closed = False

    @property
    def max_tokens(self) -> int:
        """Return the bound of the queue."""
        return self.queue.max_tokens

    @property
    def is_idle(self) -> bool:
        """Tell whether no request waits and no batch is in the engine."""
        return not (self._waiting or self._running)

    async def submit(
        self,
        model: str,
        encodings: Sequence[Encoding],
        deadline: float = float("inf"),
        *,
        retry: bool = False,
    ) -> SubmitResult:
        """Run the encodings; see `SchedulerProtocol`. `deadline` is on the scheduler's clock.

        A `retry` was admitted by an engine process that ended, and is not refused now.
        """
        request = self._new_request(model, encodings, deadline)
        if retry:
            self.queue.admit(request)
        else:
            self.queue.try_admit(request, request.submitted, engine_is_idle=not self._running)
        self._waiting.add(request)
        try:
            self._dispatch_soon()
            await request.done
        finally:
            self._waiting.discard(request)
            self.queue.cancel(request)
            request.encodings = ()
        started = request.started if request.started is not None else request.submitted
        outputs = [output for output in request.outputs if output is not None]
        return SubmitResult(outputs, started - request.submitted, request.finished - started)

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        return {model for model, failures in self._failures.items() if failures >= SUSPECT_AFTER}

    def oldest_start(self) -> float | None:
        """Return the start time of the oldest batch in the engine, None if there is no batch."""
        return min(self._running.values(), default=None)

    def health_error(self) -> str | None:
        """Report a stuck batch: the device is gone."""
        oldest = self.oldest_start()
        busy_s = 0.0 if oldest is None else self._clock() - oldest
        return stuck_message(busy_s) if busy_s > self.stuck_after_s() else None

    async def close(self) -> None:
        """Refuse waiting requests, and end the threads when their batches are done."""
        self._closed = True
        for request in list(self._waiting):
            self._fail(request, NotReadyError("the service is stopping"))
        for _ in self._threads:
            self._tasks.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._join)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Run tasks on a worker thread until one is None."""
        while (task := self._tasks.get()) is not None:
            task()

    def _new_request(self, model: str, encodings: Sequence[Encoding], deadline: float) -> QueuedRequest:
        if self._closed:
            raise NotReadyError("the service is stopping")
        if not encodings:
            raise ValueError("a request needs at least one text")
        return QueuedRequest(
            model,
            [len(encoding) for encoding in encodings],
            deadline,
            encodings=encodings,
            outputs=[None] * len(encodings),
            left=len(encodings),
            submitted=self._clock(),
        )

    def _dispatch_soon(self) -> None:
        """Dispatch in the loop's next turn, so that requests that arrived together share a batch."""
        if self._dispatching is None and self._free:
            self._dispatching = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give each free slot a batch, and fail the requests that the queue dropped."""
        self._dispatching = None
        while (
            self._free
            and not self._closed
            and (batch := self.queue.next_batch(self._clock(), self._free, self._long_running))
        ):
            self._start(batch, self._multi_slot_for(batch))
        now = self._clock()
        for job in self.queue.expired:
            request = _request_of(job)
            is_over = request.deadline <= now
            over = DeadlineExceededError(1000 * (request.deadline - request.submitted))
            self._fail(request, over if is_over else self.queue.too_late_error(request, now))
        self.queue.expired.clear()

    def _multi_slot_for(self, batch: Batch) -> MultiSlotEngine | None:
        """Return the multi-slot engine if nothing else waits or runs and it is faster for the batch."""
        found = self._multi_slot.get(batch.model)
        if found is None or self.queue.texts or self._free < self._slots:
            return None
        return found if batch.tokens >= found.from_tokens else None

    def _start(self, batch: Batch, multi_slot: MultiSlotEngine | None) -> None:
        """Send a batch to a worker thread, which calls `_finish` on the loop."""
        now, encodings = self._clock(), list[Encoding]()
        for item in batch.items:
            request = _request_of(item.job)
            request.started = now if request.started is None else request.started
            encodings += request.encodings[item.start : item.stop]
        engine = multi_slot.engine if multi_slot else self._engines[batch.model]
        slots = multi_slot.slots if multi_slot else 1
        self._free -= slots
        self._running[id(batch)] = now
        self._long_running += batch.is_long
        loop = asyncio.get_running_loop()

        def task() -> None:
            loop.call_soon_threadsafe(self._finish, batch, slots, self._run(engine, encodings))

        self._tasks.put(task)

    def _run(self, engine: Engine, encodings: Sequence[Encoding]) -> BatchResult:
        """Run a batch, on a worker thread."""
        start = self._clock()
        try:
            outputs, error = engine.run(encodings), None
        except Exception as caught:  # any error fails this batch's requests and nothing else
            outputs, error = None, caught
        return BatchResult(outputs, error, self._clock() - start)

    def _finish(self, batch: Batch, slots: int, result: BatchResult) -> None:
        """Free a batch's slots, dispatch, and then deliver its outputs."""
        self._free += slots
        seconds = self._clock() - self._running.pop(id(batch))
        self._long_running -= batch.is_long
        throughput = self.queue.throughput.get(batch.model)
        if result.outputs is not None and slots == 1 and throughput is not None:
            # Seconds of the slot: the engine's, and those in which the event loop was late.
            throughput.learn(batch.tokens, seconds)
        if result.outputs is None:
            self._retry_or_fail(batch, result.error)  # before new work is taken
        self._dispatch()
        if result.outputs is not None:
            padding_ratio = result.outputs.padding_ratio
            self._observe(batch.model, batch.tokens, batch.texts, padding_ratio, result.seconds)
            self._deliver(batch, result.outputs.texts)

    def _deliver(self, batch: Batch, outputs: Sequence[Floats]) -> None:
        """Hand outputs to their requests, and complete those that have all.

        A batch without a finite output counts as a failure of its model.
        """
        finite = np.isfinite(joined(outputs))
        start, is_finite = 0, bool(finite.all())
        if is_finite or finite.any():
            self._failures.pop(batch.model, None)
        else:
            self._failures[batch.model] += 1
        for item in batch.items:
            request, count = _request_of(item.job), item.stop - item.start
            part = outputs[start : start + count]
            start += count
            if not is_finite and not all(np.isfinite(output).all() for output in part):
                self._fail(request, EngineError("the model gave a number that is not finite"))
                continue
            request.outputs[item.start : item.stop] = part
            request.left -= count
            if request.left == 0 and not request.done.done():
                request.finished = self._clock()
                request.done.set_result(None)

    def _retry_or_fail(self, batch: Batch, error: Exception | None) -> None:
        """Retry the requests of a failed batch separately; fail one that had the batch to itself."""
        if len({id(item.job) for item in batch.items}) > 1:
            self.queue.retry_separately(batch)
            return
        self._failures[batch.model] += 1
        failure = error if isinstance(error, EngineError) else EngineError(f"the engine failed: {error!r}")
        failure.__cause__ = error if failure is not error else error.__cause__
        self._fail(_request_of(batch.items[0].job), failure)

    def _fail(self, request: QueuedRequest, error: Exception) -> None:
        self.queue.cancel(request)
        if not request.done.done():
            request.done.set_exception(error)


def stuck_message(busy_s: float) -> str:
    """Say that a batch has been in the engine for too long."""
    return f"stuck: a batch has been in the engine for {busy_s:.0f} s"


def _request_of(job: Job) -> QueuedRequest:
    assert isinstance(job, QueuedRequest)
    return job
