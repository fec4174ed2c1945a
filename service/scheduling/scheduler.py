"""The scheduler: `submit(model, encodings) → outputs`. Feeds free engine slots with batches that the policy
forms.

Everything here runs on the event loop except the engine's `run`, which gets a thread a slot. Slots are shared
by all models, so there are never more busy engine threads than the plan says. A batch that finds nobody else waiting or
running may take several slots, and their cores, at once.
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
from service.scheduling.fair_queue import Batch, FairQueue
from service.scheduling.line import Job
from service.scheduling.scheduler_protocol import Result

Clock = Callable[[], float]
STUCK_AFTER_S = 60.0
"""A batch that takes longer means that the device is gone, where no cost curve says more."""
SUSPECT_AFTER = 3
"""Failures in a row after which a model is suspected to be broken."""


@dataclass(slots=True, eq=False)
class Work(Job):
    """A job with what it needs to run and to answer."""

    encodings: Sequence[Encoding] = ()
    outputs: list[Floats | None] = field(default_factory=list)
    left: int = 0
    """Sequences whose output is still missing."""
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    submitted: float = 0.0
    started: float | None = None
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a worker thread hands back: outputs, or why there are none, and the engine's seconds."""

    outputs: Outputs | None
    error: Exception | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Wide:
    """A model's engine with the threads of several slots."""

    engine: Engine
    slots: int
    """That it takes."""
    from_tokens: int
    """Tokens of a batch from which it is faster than one slot's."""


BatchObserver = Callable[[str, int, int, float, float], None]
"""Called with model, tokens, texts, padding ratio and seconds of each batch that ran."""


class Scheduler:
    """Runs jobs on a fixed number of engine slots."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        queue: FairQueue,
        slots: int,
        *,
        wide: Mapping[str, Wide] | None = None,
        observe: BatchObserver = lambda *_: None,
        clock: Clock = time.monotonic,
        stuck_after_s: Callable[[], float] = lambda: STUCK_AFTER_S,
    ) -> None:
        """The queue's `speeds` learn from each batch that ran on one slot.

        A batch that takes longer than `stuck_after_s` never ends.
        """
        self.stuck_after_s = stuck_after_s
        self._wide = wide or {}
        self.queue = queue
        self._engines, self._observe, self._clock = engines, observe, clock
        self._slots = self._free = slots
        # Bare threads on a queue: an executor makes a Future with a lock of its own for each batch.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, name=f"engine_{n}", daemon=True) for n in range(slots)]
        for thread in self._threads:
            thread.start()
        self._wake: asyncio.Handle | None = None
        self._failures: Counter[str] = Counter()
        self._running: dict[int, float] = {}
        self._long_running = 0
        """Slots that have a document."""
        self._waiting: set[Work] = set()
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
    ) -> Result:
        """Run the encodings; see `SchedulerProtocol`. `deadline` is on the scheduler's clock.

        A `retry` was admitted by an engine process that ended, and is not refused now.
        """
        work = self._work(model, encodings, deadline)
        if retry:
            self.queue.let_in(work)
        else:
            self.queue.offer(work, work.submitted, engine_is_idle=not self._running)
        self._waiting.add(work)
        try:
            self._dispatch_soon()
            await work.done
        finally:
            self._waiting.discard(work)
            self.queue.withdraw(work)
            work.encodings = ()
        started = work.started if work.started is not None else work.submitted
        outputs = [output for output in work.outputs if output is not None]
        return Result(outputs, started - work.submitted, work.finished - started)

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        return {model for model, failures in self._failures.items() if failures >= SUSPECT_AFTER}

    def oldest_run(self) -> float | None:
        """Return when the oldest batch in the engine was started, None if there is no batch."""
        return min(self._running.values(), default=None)

    def longest_run_s(self) -> float:
        """Return how long the oldest batch has been in the engine."""
        oldest = self.oldest_run()
        return 0.0 if oldest is None else self._clock() - oldest

    def health_error(self) -> str | None:
        """Tell that the device is gone."""
        busy_s = self.longest_run_s()
        return stuck(busy_s) if busy_s > self.stuck_after_s() else None

    async def close(self) -> None:
        """Refuse what still waits, and end the threads when their batches are done."""
        self._closed = True
        for work in list(self._waiting):
            self._fail(work, NotReadyError("the service is stopping"))
        for _ in self._threads:
            self._tasks.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._join)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Run batches, on a worker thread, until there is a None."""
        while (task := self._tasks.get()) is not None:
            task()

    def _work(self, model: str, encodings: Sequence[Encoding], deadline: float) -> Work:
        if self._closed:
            raise NotReadyError("the service is stopping")
        return Work(
            model,
            [len(encoding) for encoding in encodings],
            deadline,
            encodings=encodings,
            outputs=[None] * len(encodings),
            left=len(encodings),
            submitted=self._clock(),
        )

    def _dispatch_soon(self) -> None:
        """Dispatch once the loop has run what is ready.

        Requests that arrived together share a batch, without a timer.
        """
        if self._wake is None and self._free:
            self._wake = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give each free slot a batch while there is one."""
        self._wake = None
        while self._free and not self._closed and (batch := self._next()):
            self._start(batch, self._wide_for(batch))
        now = self._clock()
        for job in self.queue.expired:
            work = _work_of(job)
            is_over = work.deadline <= now
            over = DeadlineExceededError(1000 * (work.deadline - work.submitted))
            self._fail(work, over if is_over else self.queue.refusal(work, now))
        self.queue.expired.clear()

    def _next(self) -> Batch | None:
        """Return the batch that starts now, None if nobody waits."""
        return self.queue.take(self._clock(), self._free, self._long_running)

    def _wide_for(self, batch: Batch) -> Wide | None:
        """Return the wide engine if the batch is alone and faster on it: who waits is better served side by side."""
        wide = self._wide.get(batch.model)
        if wide is None or self.queue.texts or self._free < self._slots:
            return None
        return wide if batch.tokens >= wide.from_tokens else None

    def _start(self, batch: Batch, wide: Wide | None = None) -> None:
        """Send a batch to a worker thread; the loop hears of its end by `_finish`."""
        now, encodings = self._clock(), list[Encoding]()
        for share in batch.shares:
            work = _work_of(share.job)
            work.started = now if work.started is None else work.started
            encodings += work.encodings[share.start : share.stop]
        engine, slots = (wide.engine, wide.slots) if wide else (self._engines[batch.model], 1)
        self._free -= slots
        self._running[id(batch)] = now
        self._long_running += batch.is_long
        loop = asyncio.get_running_loop()

        def task() -> None:
            loop.call_soon_threadsafe(self._finish, batch, slots, self._run(engine, encodings))

        self._tasks.put(task)

    def _run(self, engine: Engine, encodings: Sequence[Encoding]) -> Ran:
        """Run a batch, on a worker thread."""
        start = self._clock()
        try:
            outputs, error = engine.run(encodings), None
        except Exception as caught:  # whatever it was: the requests in this batch fail, the service goes on
            outputs, error = None, caught
        return Ran(outputs, error, self._clock() - start)

    def _finish(self, batch: Batch, slots: int, ran: Ran) -> None:
        """Hand the outputs of a batch to its jobs, and use its slots again."""
        self._free += slots
        now = self._clock()
        seconds = now - self._running.pop(id(batch))
        self._long_running -= batch.is_long
        if ran.outputs is not None and slots == 1 and (speed := self.queue.speeds.get(batch.model)):
            # The slot's seconds: the engine's, and the event loop's when it was late.
            speed.learn(batch.tokens, seconds)
        self._dispatch()
        if ran.outputs is None:
            self._failed(batch, ran.error)
        else:
            self._failures.pop(batch.model, None)
            self._observe(batch.model, batch.tokens, batch.texts, ran.outputs.padding_ratio, ran.seconds)
            self._deliver(batch, ran.outputs.texts)

    def _deliver(self, batch: Batch, outputs: Sequence[Floats]) -> None:
        at, is_finite = 0, bool(np.isfinite(joined(outputs)).all())
        for share in batch.shares:
            work, count = _work_of(share.job), share.stop - share.start
            part = outputs[at : at + count]
            at += count
            if not is_finite and not all(np.isfinite(output).all() for output in part):
                self._fail(work, EngineError("the model gave a number that is not finite"))
                continue
            work.outputs[share.start : share.stop] = part
            work.left -= count
            if work.left == 0 and not work.done.done():
                work.finished = self._clock()
                work.done.set_result(None)

    def _failed(self, batch: Batch, error: Exception | None) -> None:
        """Run each job of a failed batch alone, so that only the one at fault fails.

        Fail one that was alone.
        """
        if len({id(share.job) for share in batch.shares}) > 1:
            self.queue.retry_alone(batch)
            self._dispatch_soon()
            return
        self._failures[batch.model] += 1
        failure = error if isinstance(error, EngineError) else EngineError(f"the engine failed: {error!r}")
        failure.__cause__ = error if failure is not error else error.__cause__
        self._fail(_work_of(batch.shares[0].job), failure)

    def _fail(self, work: Work, error: Exception) -> None:
        self.queue.withdraw(work)
        if not work.done.done():
            work.done.set_exception(error)


def stuck(busy_s: float) -> str:
    """Say that a batch has been in the engine for too long."""
    return f"stuck: a batch has been in the engine for {busy_s:.0f} s"


def _work_of(job: Job) -> Work:
    assert isinstance(job, Work)
    return job
