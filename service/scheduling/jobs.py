"""Jobs, the queue of those of one model and size class, and the batches that the fair queue makes of them."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SHARE_MEMORY_S = 10.0
"""Seconds after which a queue's past share of the engine counts a third."""


@dataclass(slots=True, eq=False)
class Job:
    """One request's sequences for one model."""

    model: str
    sizes: Sequence[int]
    """Length of each sequence, in tokens."""
    deadline: float = float("inf")
    """Time on the caller's clock after which the job is dropped."""
    dispatched: int = 0
    """Number of sequences, from the front, that were put in batches."""
    queue: "JobQueue | None" = None
    """Queue that the job was admitted to."""
    cancelled: bool = False
    """The job was cancelled or dropped: no further sequence of it runs."""
    work: Sequence[float] = ()
    """Engine time of each sequence, in tokens of short texts; the queue that admits the job sets it."""

    @property
    def waiting_tokens(self) -> int:
        """Return the tokens that are not in a batch yet."""
        return sum(self.sizes[self.dispatched :])

    @property
    def waiting_work(self) -> float:
        """Return the engine time of what is not in a batch yet, in tokens of short texts."""
        return sum(self.work[self.dispatched :])


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The sequences [start, stop) of a job."""

    job: Job
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Return the tokens of these sequences."""
        return sum(self.job.sizes[self.start : self.stop])

    @property
    def work(self) -> float:
        """Return the engine time of these sequences, in tokens of short texts."""
        return sum(self.job.work[self.start : self.stop])

    @property
    def texts(self) -> int:
        """Return the number of sequences."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that run together on one model."""

    model: str
    items: tuple[BatchItem, ...]
    is_long: bool = False
    """The batch has a window of a document."""

    @property
    def tokens(self) -> int:
        """Return the tokens of the batch, without padding."""
        return sum(item.tokens for item in self.items)

    @property
    def work(self) -> float:
        """Return the engine time of the batch, in tokens of short texts."""
        return sum(item.work for item in self.items)

    @property
    def texts(self) -> int:
        """Return the number of sequences."""
        return sum(item.texts for item in self.items)

    @property
    def is_shared(self) -> bool:
        """Tell whether more than one job is in the batch."""
        return len({id(item.job) for item in self.items}) > 1


@dataclass(slots=True, eq=False)
class JobQueue:
    """Waiting jobs of one model and size class, in the order of arrival."""

    model: str
    size_class: int
    """Index of the size class, 0 for the shortest jobs."""
    jobs: deque[Job] = field(default_factory=deque)
    tokens: int = 0
    """Tokens of its jobs that are not in batches."""
    texts: int = 0
    """Sequences of its jobs that are not in batches."""
    work: float = 0.0
    """Engine time of its jobs' sequences that are not in batches, in tokens of short texts."""
    served_s: float = 0.0
    """Engine seconds served; an empty queue is credited with what the others had meanwhile."""
    rate: float = 0.0
    """Highest tokens per second of its model since late jobs were last dropped."""
    _share: float = 0.0
    _served_at: float | None = None

    def recent_share(self, now: float) -> float:
        """Return its recent share of the engine's time."""
        if self._served_at is None:
            return 0.0
        return self._share * math.exp((self._served_at - now) / SHARE_MEMORY_S)

    def was_served_recently(self, now: float) -> bool:
        """Tell whether it had the engine within SHARE_MEMORY_S."""
        return self._served_at is not None and now - self._served_at < SHARE_MEMORY_S

    def charge(self, seconds: float, now: float) -> None:
        """Charge it for engine time."""
        self.served_s += seconds
        self._share, self._served_at = self.recent_share(now) + seconds / SHARE_MEMORY_S, now

    def next_item(self, *, max_tokens: int, room: int, force: bool) -> BatchItem | None:
        """Return the first job's next sequences, at least one, of up to `max_tokens` and no more than `room`.

        Returns None if the first does not fit in `room`, unless `force`: a sequence longer than a budget runs alone.
        """
        job = self.jobs[0]
        start = stop = job.dispatched
        tokens = 0
        while stop < len(job.sizes):
            size = job.sizes[stop]
            is_first = stop == start
            fits = tokens + size <= room and (is_first or tokens + size <= max_tokens)
            if not fits and not (is_first and force):
                break
            tokens += size
            stop += 1
        return BatchItem(job, start, stop) if stop > start else None
