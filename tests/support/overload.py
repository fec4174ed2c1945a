"""The queue under more work than the engine does: simulated, with a fake engine and a fake clock."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bert.errors import QueueFullError
from service.scheduling.fair_queue import Batch, FairQueue, Job, Throughput

TOKENS_PER_S = 4000.0
BUDGET = 128
Sizes = Callable[[random.Random], list[int]]


def sentences(chance: random.Random) -> list[int]:
    return [chance.randint(5, 60)]


def lists(_: random.Random) -> list[int]:
    return [120] * 60


def documents(chance: random.Random) -> list[int]:
    return [chance.choice((128, 256))] * chance.randint(20, 100)


def mixed(chance: random.Random) -> list[int]:
    """Equal work, about, of each kind."""
    return chance.choices((sentences, lists, documents), (200, 1, 0.7))[0](chance)


@dataclass
class Simulation:
    """Jobs that arrive at `load` times the capacity, and an engine of some slots that takes its time."""

    sizes: Sizes
    load: float
    deadline_s: float
    slots: int = 1
    guess: float = 1.0
    """The first estimate of the speed, to the true one."""
    lasts_s: float = 120.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    now: float = 0.0
    offered: list[Job] = field(default_factory=list)
    done_at: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    dropped: list[Job] = field(default_factory=list)
    running: list[tuple[float, int, Batch]] = field(default_factory=list)
    ran_tokens: int = 0

    def __post_init__(self) -> None:
        token_s = self.slots / TOKENS_PER_S
        self.speed = Throughput(0.0, token_s / self.guess, BUDGET, self.slots)
        self.queue = FairQueue(10**9, {"m": BUDGET}, {"m": self.speed})
        self._numbers = itertools.count()

    def run(self) -> None:
        arrivals = self._arrivals()
        upcoming: tuple[float, Job] | None = next(arrivals)
        while upcoming or self.running:
            if upcoming and (not self.running or upcoming[0] <= self.running[0][0]):
                self.now, job = upcoming
                self._arrive(job)
                upcoming = next(arrivals, None)
            else:
                self._finish()
            self._dispatch()

    def _arrivals(self) -> Iterator[tuple[float, Job]]:
        at = 0.0
        while at < self.lasts_s:
            sizes = self.sizes(self.chance)
            yield at, Job("m", sizes, at + self.deadline_s)
            at += self.chance.expovariate(self.load * TOKENS_PER_S / sum(sizes))

    def _arrive(self, job: Job) -> None:
        self.offered.append(job)
        try:
            self.queue.try_admit(job, self.now, engine_is_idle=not self.running)
        except QueueFullError as full:
            assert full.retry_after_s > 0
            self.refused += 1
            self.note(job, full)

    def note(self, job: Job, error: QueueFullError) -> None:
        """Note what the queue refused."""

    def _dispatch(self) -> None:
        while len(self.running) < self.slots:
            long_running = sum(batch.is_long for _, _, batch in self.running)
            batch = self.queue.next_batch(self.now, self.slots - len(self.running), long_running)
            self.dropped += self.queue.expired
            self.queue.expired.clear()
            if batch is None:
                break
            ends = self.now + batch.tokens * self.slots / TOKENS_PER_S
            heapq.heappush(self.running, (ends, next(self._numbers), batch))

    def _finish(self) -> None:
        self.now, _, batch = heapq.heappop(self.running)
        self.ran_tokens += batch.tokens
        self.speed.learn(batch.tokens, batch.tokens * self.slots / TOKENS_PER_S)
        for item in batch.items:
            if item.stop == len(item.job.sizes):
                self.done_at[id(item.job)] = self.now

    @property
    def in_time(self) -> list[Job]:
        return [job for job in self.offered if self.done_at.get(id(job), float("inf")) <= job.deadline]

    def goodput(self) -> float:
        """Return the tokens of jobs that were answered in time, to what the engine could do."""
        return sum(sum(job.sizes) for job in self.in_time) / (TOKENS_PER_S * self.now)
