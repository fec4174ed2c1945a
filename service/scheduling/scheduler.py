"""The scheduler: `submit(model, encodings) → outputs`. Runs the batches of the fair queue on engine slots.

All of it runs on the event loop except the engine's `run`. All models share the slots, so no more threads are busy than
the slot layout allows. A batch with nothing else waiting or running may take several slots, and their cores, at once.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert.errors import EngineError, ModelReplacedError, NotReadyError
from bert.graph_inputs import flat
from bert.names import name_of
from bert.tokenizer import Encoding
from service.engine.low_memory import LowMemory
from service.engine.models import Engine, Floats, Outputs
from service.scheduling.dispatcher import Clock, Dispatcher, request_of
from service.scheduling.fair_queue import NO_LANE, SHADOW, Batch, FairQueue, Lane, Throughput
from service.scheduling.scheduler_protocol import SubmitResult

STUCK_AFTER_S = 60.0
"""Seconds after which a batch counts as stuck, where no cost curve gives a better limit."""
SUSPECT_AFTER = 3
"""Failures in a row after which a model is suspected to be broken."""
SLOWEST_BATCHES = 20
"""Times its slowest batch that an engine may be silent or run one batch before it is hung, if longer than `hung_after_s`."""


@dataclass(frozen=True, slots=True)
class MultiSlotEngine:
    """A model's engine with the threads of several slots."""

    engine: Engine
    slots: int
    """Number of slots that a batch takes."""
    from_tokens: int
    """Smallest batch, in tokens, that runs faster on it than on one slot."""


BatchObserver = Callable[[str, int, int, float, float], None]
"""Called with id of the model, tokens, texts, padding ratio and seconds of each batch that ran."""


class Scheduler(Dispatcher):
    """Runs requests on a fixed number of engine slots."""

    engines_ended = 0
    """It ends with its process."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        queue: FairQueue,
        slots: int,
        *,
        multi_slot: Mapping[str, MultiSlotEngine] | None = None,
        observe: BatchObserver = lambda *_: None,
        memory: LowMemory | None = None,
        clock: Clock = time.monotonic,
        stuck_after_s: Callable[[Batch | None], float] = lambda _: STUCK_AFTER_S,
    ) -> None:
        """Start the threads. The queue's `throughput` learns from each batch that runs on one slot.

        `stuck_after_s` returns the seconds after which a batch counts as stuck; without a batch, those of any batch.
        """
        super().__init__(queue, slots, clock, "engine")
        self.stuck_after_s = stuck_after_s
        self._engines, self._observe, self._memory = engines, observe, memory or LowMemory()
        self._multi_slot = {} if multi_slot is None else multi_slot  # an empty one may get more
        self._failures: Counter[str] = Counter()
        self._running: dict[int, tuple[float, Batch]] = {}
        """Start time and batch of what is in the engine, by the batch's id; the oldest is first."""

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
        lane: Lane = NO_LANE,
        *,
        retry: bool = False,
    ) -> SubmitResult:
        """Run the encodings; see `SchedulerProtocol`. `deadline` is on the scheduler's clock.

        A `retry` was admitted by an engine process that ended, and is not refused now.
        """
        if not encodings:
            raise ValueError("a request needs at least one text")
        if model not in self._engines:
            raise ModelReplacedError(name_of(model))
        if lane == SHADOW and self.queue.tokens:
            raise NotReadyError("other requests wait, and those of shadow traffic are dropped")
        sizes = [len(encoding) for encoding in encodings]
        request = await self._run(model, encodings, sizes, deadline, retry=retry, lane=lane)
        assert request.started is not None
        return SubmitResult(
            request.results, request.started - request.submitted, request.finished - request.started
        )

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        return {model for model, failures in self._failures.items() if failures >= SUSPECT_AFTER}

    def uses(self, model: str) -> bool:
        """Tell whether anything of a model waits or runs."""
        running = (batch.model for _, batch in self._running.values())
        return model in running or any(request.model == model for request in self._waiting)

    def forget(self, model: str) -> None:
        """Drop what is known of a model that nothing uses any more."""
        self._failures.pop(model, None)
        self.queue.forget(model)

    def oldest(self) -> tuple[float, Batch] | None:
        """Return the start time of the oldest batch in the engine and the batch, None if there is none."""
        return next(iter(self._running.values()), None)

    def health_error(self) -> str | None:
        """Report a stuck batch: the device is gone."""
        if (oldest := self.oldest()) is None:
            return None
        start, batch = oldest
        busy_s = self._clock() - start
        return stuck_message(busy_s) if busy_s > self.stuck_after_s(batch) else None

    def fail_stuck(self, batch: Batch, busy_s: float) -> None:
        """Fail the request of a stuck batch, unless it shared the batch: then any of them may be the cause."""
        if not batch.is_shared:
            error = EngineError(f"the engine was still working on this request after {busy_s:.0f} s")
            self._fail(request_of(batch.items[0].job), error)

    def _multi_slot_for(self, batch: Batch) -> MultiSlotEngine | None:
        """Return the multi-slot engine if nothing else waits or runs and it is faster for the batch."""
        found = self._multi_slot.get(batch.model)
        if found is None or self.queue.texts or self._free < self._slots:
            return None
        return found if batch.tokens >= found.from_tokens else None

    def _start(self, batch: Batch) -> None:
        """Send a batch to a thread, which calls `_finish` on the loop."""
        now, encodings = self._clock(), list[Encoding]()
        for item in batch.items:
            request = request_of(item.job)
            request.started = now if request.started is None else request.started
            encodings += request.sequences[item.start : item.stop]
        multi_slot = self._multi_slot_for(batch)
        engine = multi_slot.engine if multi_slot else self._engines[batch.model]
        slots = multi_slot.slots if multi_slot else 1
        self._take(batch, slots)
        self._running[id(batch)] = now, batch
        loop = asyncio.get_running_loop()

        def task() -> None:
            start = self._clock()
            result: Outputs | Exception
            try:
                result = self._memory.run(name_of(batch.model), engine, encodings)
            except Exception as error:  # any error fails this batch's requests and nothing else
                result = error
            loop.call_soon_threadsafe(self._finish, batch, slots, result, self._clock() - start)

        self._tasks.put(task)

    def _finish(self, batch: Batch, slots: int, result: Outputs | Exception, engine_s: float) -> None:
        """Free a batch's slots, dispatch, and then deliver its outputs."""
        self._release(batch, slots)
        start, _ = self._running.pop(id(batch))
        seconds = self._clock() - start
        if isinstance(result, Exception):
            self._retry_or_fail(batch, result)  # before new work is taken
            self._dispatch()
            return
        throughput = self.queue.throughput.get(batch.model)
        if slots == 1 and throughput is not None:
            # Seconds of the slot: the engine's, and those in which the event loop was late.
            throughput.learn(batch.work, seconds)
        self._dispatch()
        self._observe(batch.model, batch.tokens, batch.texts, result.padding_ratio, engine_s)
        self._deliver(batch, result.texts)

    def _deliver(self, batch: Batch, outputs: Sequence[Floats]) -> None:
        """Hand outputs to their requests, and complete those that have all.

        A batch without a finite output counts as a failure of its model.
        """
        finite = np.isfinite(flat(outputs))
        start, is_finite = 0, bool(finite.all())
        if is_finite or finite.any():
            self._failures.pop(batch.model, None)
        else:
            self._failures[batch.model] += 1
        for item in batch.items:
            request, part = request_of(item.job), outputs[start : start + item.texts]
            start += item.texts
            if is_finite or all(np.isfinite(output).all() for output in part):
                request.results[item.start : item.stop] = part
                self._count_results(request, item.texts)
            else:
                self._fail(request, EngineError("the model gave a number that is not finite"))

    def _retry_or_fail(self, batch: Batch, error: Exception) -> None:
        """Retry the requests of a failed batch separately; fail one that had the batch to itself."""
        if batch.is_shared:
            self.queue.retry_separately(batch)
            return
        self._failures[batch.model] += 1
        failure = error if isinstance(error, EngineError) else EngineError(f"the engine failed: {error!r}")
        failure.__cause__ = error if failure is not error else error.__cause__
        self._fail(request_of(batch.items[0].job), failure)


@dataclass(frozen=True, slots=True)
class HangLimit:
    """The limit of a batch. It follows the speed of recent batches."""

    hung_after_s: float
    request_timeout_s: float
    throughput: Mapping[str, Throughput]
    budgets: Mapping[str, int]
    """Tokens of a full batch of each model."""
    longest: Mapping[str, int]
    """Tokens of the longest batch of each model."""

    def seconds(self, batch: Batch | None = None) -> float:
        """Return the limit of a batch, or of the engine's silence.

        The time of a long text is extrapolated, and a loaded machine may need far more. It may take as long again as a
        request may wait: its request is then over before the engine is given up, and is not run again.
        """
        longest = (each.seconds(each.work(self.longest[name])) for name, each in self.throughput.items())
        slowest_s = max(longest, default=0.0)
        limit_s = max(self.hung_after_s, SLOWEST_BATCHES * slowest_s)
        return limit_s + self.request_timeout_s if batch and self._has_long_text(batch) else limit_s

    def _has_long_text(self, batch: Batch) -> bool:
        """Tell whether one text of the batch takes longer than a full batch."""
        budget = self.budgets.get(batch.model, math.inf)
        return any(work > budget for item in batch.items for work in item.job.work[item.start : item.stop])


def stuck_message(busy_s: float) -> str:
    """Say that a batch has been in the engine for too long."""
    return f"stuck: a batch has been in the engine for {busy_s:.0f} s"
