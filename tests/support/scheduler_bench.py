"""A scheduler with a fake engine and a fake clock."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.scheduling.fair_queue import FairQueue, Throughput
from service.scheduling.scheduler import Scheduler
from service.scheduling.scheduler_protocol import SubmitResult


def text(tokens: int, mark: int = 0) -> Encoding:
    ids = np.full(tokens, mark, np.int32)
    return Encoding(ids, ids, np.zeros((tokens, 2), np.int32), ids, ids)


@dataclass
class FakeEngine:
    """Answers each text with its mark; a text marked `poison` makes the batch fail, `nan` its own answer."""

    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1000))
    batches: list[list[int]] = field(default_factory=list)
    poison: int = -1
    nan: int = -2
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        marks = [int(encoding.ids[0]) for encoding in encodings]
        with self.lock:
            self.batches.append(marks)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.gate.acquire(timeout=10)
        with self.lock:
            self.at_once -= 1
        if self.poison in marks:
            raise ValueError("poisoned")
        values = [np.nan if mark == self.nan else mark for mark in marks]
        return Outputs([np.full((1, 1), value, np.float32) for value in values], 0.25)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Bench:
    """A scheduler with one closed gate, and what it was asked."""

    slots: int = 1
    budget: int = 100
    max_tokens: int = 10_000
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(threading.Semaphore(0)))
    clock: Clock = field(default_factory=Clock)
    observed: list[tuple[str, int, int, float, float]] = field(default_factory=list)

    def start(self) -> Scheduler:
        speed = Throughput(0.0, self.slots / 1000, self.budget, self.slots)
        queue = FairQueue(self.max_tokens, {"m": self.budget}, {"m": speed})
        return Scheduler(
            {"m": self.engine},
            queue,
            self.slots,
            observe=lambda *values: self.observed.append(values),
            clock=self.clock,
        )

    def run(self, scenario: Callable[[Scheduler], Awaitable[None]]) -> None:
        async def main() -> None:
            scheduler = self.start()
            try:
                await asyncio.wait_for(scenario(scheduler), 10)
            finally:
                self.engine.gate.release(1000)
                await scheduler.close()

        asyncio.run(main())

    async def started(self, batches: int) -> None:
        """Wait until so many batches are in the engine or through it."""
        while len(self.engine.batches) < batches:
            await asyncio.sleep(0.001)


def submitted(
    scheduler: Scheduler, *marks: int, tokens: int = 10, deadline: float = 1e9
) -> "asyncio.Task[SubmitResult]":
    return asyncio.create_task(scheduler.submit("m", [text(tokens, mark) for mark in marks], deadline))


def values(result: SubmitResult) -> list[int]:
    return [int(output[0, 0]) for output in result.outputs]
