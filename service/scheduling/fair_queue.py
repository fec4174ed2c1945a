"""Decide which requests are admitted and what the next batch holds, by an estimate of how fast batches run.

There is no clock, no thread and no engine here.

A job is one request's sequences (texts, or windows of long texts) for one model. It joins the queue of its model and size
class. A queue is first in first out, and the queues take equal turns in engine seconds (start-time fair queueing): a
sentence does not wait behind documents, and documents do not starve. A batch is filled up to the model's token budget.
Each named API key has a lane: queues of its own. Lanes take turns by their shares, whatever waits in each.
There is no timer: the dispatcher calls `next_batch` for each free engine slot.

A batch cannot be interrupted, and a window takes ten times as long as a sentence. So documents leave one of several slots
free while short texts come. A job that would miss its deadline at the present throughput is refused on arrival.
Reasons and measurements: docs/decisions/0013-overload.md.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bert.errors import QueueFullError, TooLateError
from bert.names import name_of
from bert.packing import TEXT_TOKENS, CostModel

SIZE_CLASSES = (4, 64)
"""Largest job of each size class but the last, in token budgets. The classes: a text or some sentences; a page or a list;
documents."""
DOCUMENTS = len(SIZE_CLASSES)
"""Size class of the longest jobs."""
ADMISSION_MARGIN = 0.8
"""Admit a job only if it should finish in this part of its time; the rest is for decoding, sending and estimation errors."""
STARTED_MARGIN = 0.8
"""Drop a started job when this part of its estimated remaining time exceeds its deadline, an unstarted one at 100%."""
SLOWDOWN = 0.8
"""Ratio of present to past throughput below which waiting jobs are checked against their deadlines again."""
SHARE_MEMORY_S = 10.0
"""Seconds after which a queue's past share of the engine counts a third."""
MEMORY_S = 5.0
"""Engine seconds after which a measurement counts a third: long enough to absorb one slow batch, short enough to follow a
machine that becomes busy."""
MAX_STALL = 10.0
"""Largest measured time of a batch that counts, over its estimate: a process that was stopped for a minute must not
refuse every request of the next."""
CURVE_WEIGHT_S = 0.1
"""Seconds of batches that the cost curve counts for."""
MANY_QUEUES = 256
"""Queues past which those of lanes in which nothing waits are forgotten: each request looks at all."""


@dataclass(slots=True)
class Throughput:
    """Estimate of how fast one model's batches run on all engine slots, corrected by the batches themselves.

    A batch takes `overhead_s` plus `token_s` per token, times a learned factor: measured over estimated seconds of recent
    batches. The factor is learned rather than tokens per second, because a batch of one short text has few tokens: a quiet
    evening must not make the service think itself slow. Times are those of texts of TEXT_TOKENS tokens; `work` turns a
    longer text into as many tokens of these as take as long.
    """

    overhead_s: float
    token_s: float
    budget: int
    """Tokens of a full batch."""
    slots: int = 1
    cost: CostModel | None = None
    """Cost of a token by the length of its text; None: all cost the same."""
    tokens_per_s: float = field(init=False)
    """Tokens per second of all slots in full batches; stored, as each request asks for it several times."""
    _estimated_s: float = CURVE_WEIGHT_S
    _measured_s: float = CURVE_WEIGHT_S

    def __post_init__(self) -> None:
        """Derive `tokens_per_s`."""
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    def work(self, tokens: int) -> float:
        """Return how many tokens of short texts take as long as one text of so many."""
        if self.cost is None or tokens <= TEXT_TOKENS:
            return tokens
        return tokens * self.cost.token(tokens) / self.cost.token(TEXT_TOKENS)

    def learn(self, tokens: float, seconds: float) -> None:
        """Learn from a batch that ran on one slot."""
        estimated_s = self._estimate(tokens)
        measured_s = min(max(seconds, 1e-6), MAX_STALL * estimated_s * self._factor)
        decay = math.exp(-measured_s / MEMORY_S)
        self._estimated_s = decay * self._estimated_s + estimated_s
        self._measured_s = decay * self._measured_s + measured_s
        self.tokens_per_s = self.slots * self.budget / self.batch_s

    @property
    def batch_s(self) -> float:
        """Return the seconds of a full batch on one slot."""
        return self.seconds(self.budget)

    def seconds(self, tokens: float) -> float:
        """Return the seconds of a batch on one slot."""
        return self._estimate(tokens) * self._factor

    @property
    def _factor(self) -> float:
        """Return how much slower recent batches were than the cost curve says."""
        return self._measured_s / self._estimated_s

    def _estimate(self, tokens: float) -> float:
        return self.overhead_s + self.token_s * tokens


UNMEASURED = Throughput(0.0, 1e-9, 1)


class Lane(NamedTuple):
    """Whose requests queue together: those of one API key, or of all that have none."""

    name: str = ""
    share: float = 1.0
    """Weight of its turns."""


NO_LANE = Lane()
SHADOW = Lane("\0shadow")
"""Lane of requests that are read a second time, to compare versions. No API key has this name."""


def own_room(limit: int, lane: Lane, waiting: Iterable[Lane]) -> float:
    """Return the part of a limit that a lane has to itself beside those that wait."""
    return limit * lane.share / sum(each.share for each in {lane, *waiting})


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
    lane: Lane = NO_LANE

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
class LaneTurns:
    """What the queues of a lane were served."""

    share: float = 1.0
    tokens: int = 0
    """Tokens of its jobs that are not in batches."""
    served_s: float = 0.0
    """Engine seconds served, over its share; an empty lane is credited with what the others had meanwhile."""
    virtual_s: float = 0.0
    """`served_s` of its queue served last; a queue that was empty starts from it, not from its own."""


@dataclass(slots=True, eq=False)
class JobQueue:
    """Waiting jobs of one lane, model and size class, in the order of arrival."""

    model: str
    size_class: int
    """Index of the size class, 0 for the shortest jobs."""
    lane: LaneTurns = field(default_factory=LaneTurns)
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


@dataclass(slots=True)
class FairQueue:
    """Queues of jobs, bounded in tokens."""

    max_tokens: int
    budgets: Mapping[str, int]
    """Tokens of a batch, by model."""
    throughput: Mapping[str, Throughput] = field(default_factory=dict)
    """Throughput by model; no deadline is checked for a model without one."""
    slots: int = 1
    """Number of engine slots."""
    large_budgets: Mapping[str, int] = field(default_factory=dict)
    """Tokens of a large batch, by model; used when enough waits to fill every slot with one."""
    unit: str = "tokens"
    """Unit of job sizes, for messages."""
    tokens: int = 0
    """Waiting tokens, without those in batches."""
    texts: int = 0
    """Waiting sequences, without those in batches."""
    expired: list[Job] = field(default_factory=list)
    """Jobs that `next_batch` dropped because of their deadlines; the caller answers them and clears the list."""
    _queues: dict[tuple[str, int, Lane], JobQueue] = field(default_factory=dict)
    _lanes: dict[Lane, LaneTurns] = field(default_factory=dict)
    _retries: deque[Batch] = field(default_factory=deque)
    """Items of failed batches, each now in a batch of its own; they count as waiting."""
    _virtual_s: float = 0.0
    """`served_s` of the lane served last."""

    def try_admit(
        self, job: Job, now: float = 0.0, *, engine_is_idle: bool = False, busy_s: float = 0.0
    ) -> None:
        """Admit a job, whole. `busy_s` are the expected seconds until a slot is free.

        Raises QueueFullError if its tokens exceed the bound, TooLateError if it would miss its deadline. When the engine is
        idle and nothing waits, no deadline is checked: the job's time is only an estimate.
        """
        queue = self._weigh(job)
        size = job.waiting_tokens
        if self.tokens + size > self.max_tokens and not self._has_own_room(job, queue):
            rate = self._throughput(job.model).tokens_per_s
            excess_s = (self.tokens + size - self.max_tokens) / rate
            raise QueueFullError(self.tokens, self.max_tokens, excess_s, unit=self.unit, tokens_per_s=rate)
        if self.tokens or not engine_is_idle:
            self._check_deadline(job, queue, now, busy_s)
        self._append(job, queue)

    def _has_own_room(self, job: Job, queue: JobQueue) -> bool:
        """Tell whether a job fits in its lane's part of the bound, which other lanes may have filled before."""
        waiting = [lane for lane, turns in self._lanes.items() if turns.tokens]
        return queue.lane.tokens + job.waiting_tokens <= own_room(self.max_tokens, job.lane, waiting)

    def admit(self, job: Job) -> None:
        """Append a job to its queue, however much waits."""
        self._append(job, self._weigh(job))

    def _append(self, job: Job, queue: JobQueue) -> None:
        lane = queue.lane
        if not queue.tokens:
            queue.served_s = max(queue.served_s, lane.virtual_s)
        if not lane.tokens:
            lane.served_s = max(lane.served_s, self._virtual_s)
        job.queue = queue
        queue.jobs.append(job)
        self._count(job, job.waiting_tokens, len(job.sizes), job.waiting_work)

    def waiting(self, name: str) -> tuple[int, int]:
        """Return the waiting tokens and sequences of all versions of a model, without those in batches."""
        queues = [queue for queue in list(self._queues.values()) if name_of(queue.model) == name]
        return sum(queue.tokens for queue in queues), sum(queue.texts for queue in queues)

    def forget(self, model: str) -> None:
        """Drop the queues of a model for which nothing waits and nothing will come."""
        for key in [key for key in self._queues if key[0] == model]:
            del self._queues[key]

    def cancel(self, job: Job) -> None:
        """Remove a job; no-op if it was cancelled before."""
        if not job.cancelled:
            job.cancelled = True
            if job.queue is not None:
                self._count(job, -job.waiting_tokens, job.dispatched - len(job.sizes), -job.waiting_work)
            for batch in [retry for retry in self._retries if retry.items[0].job is job]:
                self._take_retry(batch)

    def retry_separately(self, batch: Batch) -> None:
        """Put each item of a failed batch, in a batch of its own, ahead of all waiting jobs."""
        for item in batch.items:
            if not item.job.cancelled:
                self._retries.append(Batch(batch.model, (item,), self._is_long([item])))
                self._count(item.job, item.tokens, item.texts, item.work)

    def next_batch(self, now: float, free_slots: int = 1, long_running: int = 0) -> Batch | None:
        """Form the next batch, None if nothing may run. Drops jobs that cannot meet their deadlines.

        With several free slots, a batch takes an equal part of the waiting tokens. `long_running` is the number of slots
        that run documents: if only one other slot is left, it is reserved while short texts come.
        """
        if retry := self._next_retry(now):
            return retry
        self._drop_late_jobs(now)
        is_reserved = self.slots > 1 and long_running >= self.slots - 1 and self._short_texts_come(now)
        waiting = self._in_turn(self._queues.values(), now)
        queues = [queue for queue in waiting if not (is_reserved and queue.size_class == DOCUMENTS)]
        if not queues:
            return None
        own = [queue for queue in queues if queue.model == queues[0].model]
        return self._fill(own, now, -(-self.tokens // free_slots))

    def _next_retry(self, now: float) -> Batch | None:
        while self._retries:
            batch = self._retries[0]
            job, work = batch.items[0].job, batch.work
            self._take_retry(batch)
            if not self._is_late(job, now, work):
                return batch
            self.expired.append(job)
            self.cancel(job)
        return None

    def _take_retry(self, batch: Batch) -> None:
        self._retries.remove(batch)
        self._count(batch.items[0].job, -batch.tokens, -batch.texts, -batch.work)

    def too_late_error(self, job: Job, now: float) -> TooLateError:
        """Return the error for a job that was dropped before its deadline because the engine became slower."""
        waiting_s = sum(self._seconds(queue.model, queue.work) for queue in self._queues.values())
        needs_s = waiting_s + self._seconds(job.model, job.waiting_work)
        assert job.queue is not None
        return self._too_late(job, job.queue, waiting_s, needs_s, job.deadline - now)

    def _check_deadline(self, job: Job, queue: JobQueue, now: float, busy_s: float) -> None:
        """Raise TooLateError unless the job should finish within ADMISSION_MARGIN of its time."""
        waiting_s = {id(each): self._seconds(each.model, each.work) for each in self._queues.values()}
        own_s = waiting_s[id(queue)] + self._seconds(job.model, job.waiting_work)
        others = [
            (waiting_s[id(each)], each.recent_share(now))
            for each in self._queues.values()
            if each is not queue and each.lane is queue.lane
        ]
        lanes = self._other_lanes(queue, waiting_s, now) if len(self._lanes) > 1 else ()
        running_s = self._throughput(job.model).batch_s
        large = self.large_budgets.get(job.model, 0)
        if large and self.tokens >= self.slots * large:  # the running batches are then large too
            running_s *= large / self.budgets[job.model]
        if queue.size_class == DOCUMENTS and self.slots > 1 and self._short_texts_come(now):
            own_s *= self.slots / (self.slots - 1)
        # One long text in a slot takes longer than a full batch.
        running_s = max(running_s, busy_s)
        needs_s, has_s = finish_s(own_s, others, lanes) + running_s, job.deadline - now
        if needs_s > ADMISSION_MARGIN * has_s:
            retry_s = min(needs_s - ADMISSION_MARGIN * has_s, sum(waiting_s.values()) + running_s)
            raise self._too_late(job, queue, retry_s, needs_s, has_s)

    def _other_lanes(
        self, queue: JobQueue, waiting_s: Mapping[int, float], now: float
    ) -> list[tuple[float, float, float]]:
        """Return the waiting seconds, recent share and relative weight of each lane but a queue's own."""
        found = dict[int, tuple[float, float, float]]()
        for each in self._queues.values():
            if (lane := each.lane) is not queue.lane:
                waits_s, recent, weight = found.get(id(lane), (0.0, 0.0, lane.share / queue.lane.share))
                found[id(lane)] = waits_s + waiting_s[id(each)], recent + each.recent_share(now), weight
        return list(found.values())

    def _too_late(
        self, job: Job, queue: JobQueue, retry_after_s: float, needs_s: float, has_s: float
    ) -> TooLateError:
        # Of texts as long as the job's: classes are bounded in work.
        budget = self.budgets[job.model] * sum(job.sizes) / sum(job.work)
        bounds = (0.0, *SIZE_CLASSES, math.inf)
        return TooLateError(
            self.tokens,
            self.max_tokens,
            retry_after_s,
            needs_s,
            has_s,
            unit=self.unit,
            tokens_per_s=self._throughput(job.model).tokens_per_s,
            sizes=(bounds[queue.size_class] * budget, bounds[queue.size_class + 1] * budget),
        )

    def _short_texts_come(self, now: float) -> bool:
        short = (queue for queue in self._queues.values() if queue.size_class == 0)
        return any(queue.tokens or queue.was_served_recently(now) for queue in short)

    def _in_turn(self, queues: Iterable[JobQueue], now: float) -> list[JobQueue]:
        """Return the queues that are not empty, the least served lane's and queue first; of equals, shorter jobs first."""
        return sorted(
            (queue for queue in queues if self._has_head(queue, now)),
            key=lambda queue: (queue.lane.served_s, queue.served_s, queue.size_class),
        )

    def _has_head(self, queue: JobQueue, now: float) -> bool:
        """Remove cancelled and late jobs from the front of a queue; tell whether a job is left."""
        while queue.jobs:
            job = queue.jobs[0]
            if not job.cancelled and not self._is_late(job, now):
                return True
            if not job.cancelled:
                self.expired.append(job)
            self.cancel(queue.jobs.popleft())
        return False

    def _is_late(self, job: Job, now: float, ahead: float = 0.0) -> bool:
        """Tell whether a job will miss its deadline, with `ahead` work before it in its queue.

        If no other job waits, it is late only past its deadline: dropping it sooner would leave the engine idle.
        """
        if job.deadline <= now:
            return True
        if self.tokens <= job.waiting_tokens:
            return False
        margin = STARTED_MARGIN if job.dispatched else 1.0
        return now + margin * self._seconds(job.model, ahead + job.waiting_work) > job.deadline

    def _drop_late_jobs(self, now: float) -> None:
        """Drop late jobs anywhere in a queue whose model became slower, so that their clients learn of it at once."""
        for queue in self._queues.values():
            rate = self._throughput(queue.model).tokens_per_s
            if rate < SLOWDOWN * queue.rate:
                queue.rate, ahead = rate, 0.0
                for job in queue.jobs:
                    if not job.cancelled and self._is_late(job, now, ahead):
                        self.expired.append(job)
                        self.cancel(job)
                    ahead += 0.0 if job.cancelled else job.waiting_work
            queue.rate = max(queue.rate, rate)

    def _fill(self, own: Sequence[JobQueue], now: float, part: int) -> Batch:
        """Let queues of one model take turns until the budget, or this slot's part, is used.

        A queue whose next sequence does not fit keeps its turn, and the others fill the rest.
        """
        model = own[0].model
        budget, items = self._budget(own, now), list[BatchItem]()
        left = min(budget, part)
        while True:
            found = (
                queue.next_item(max_tokens=budget // 2, room=left, force=not items)
                for queue in self._in_turn(own, now)
            )
            item = next(filter(None, found), None)
            if item is None:
                break
            items.append(item)
            left -= self._remove(item, now)
        return Batch(model, tuple(items), self._is_long(items))

    def _budget(self, own: Sequence[JobQueue], now: float) -> int:
        """Return the token budget of this batch: the large one if that makes no request wait longer.

        While short texts come, only they count as waiting. A model that shares the engine gets no large batch, which would
        delay the other model's next text.
        """
        model = own[0].model
        small = self.budgets[model]
        large = self.large_budgets.get(model, small)
        if any(queue.model != model and queue.was_served_recently(now) for queue in self._queues.values()):
            return small
        counted = [queue for queue in own if queue.size_class == 0] if self._short_texts_come(now) else own
        return large if sum(queue.tokens for queue in counted) >= self.slots * large else small

    def _remove(self, item: BatchItem, now: float) -> int:
        """Take an item out of its queue and charge the queue; return its tokens."""
        job, tokens, work = item.job, item.tokens, item.work
        queue = job.queue
        assert queue is not None
        lane, seconds = queue.lane, self._seconds(job.model, work)
        job.dispatched = item.stop
        self._count(job, -tokens, -item.texts, -work)
        lane.virtual_s = max(lane.virtual_s, queue.served_s)
        self._virtual_s = max(self._virtual_s, lane.served_s)
        queue.charge(seconds, now)
        lane.served_s += seconds / lane.share
        if job.dispatched == len(job.sizes):
            queue.jobs.popleft()
        return tokens

    def _is_long(self, items: Iterable[BatchItem]) -> bool:
        return any(item.job.queue is not None and item.job.queue.size_class == DOCUMENTS for item in items)

    def _weigh(self, job: Job) -> JobQueue:
        """Set a job's work, and return the queue of its size class."""
        throughput = self._throughput(job.model)
        job.work = [throughput.work(size) for size in job.sizes]
        size_class = bisect.bisect_left(SIZE_CLASSES, job.waiting_work / self.budgets[job.model])
        key = job.model, size_class, job.lane
        if (queue := self._queues.get(key)) is None:
            if len(self._queues) >= MANY_QUEUES:
                self._queues = {key: each for key, each in self._queues.items() if each.lane.tokens}
                self._lanes = {lane: turns for lane, turns in self._lanes.items() if turns.tokens}
            lane = self._lanes.setdefault(job.lane, LaneTurns(job.lane.share))
            queue = self._queues[key] = JobQueue(job.model, size_class, lane)
        return queue

    def _throughput(self, model: str) -> Throughput:
        return self.throughput.get(model, UNMEASURED)

    def seconds(self, batch: Batch) -> float:
        """Return the expected seconds of a batch on one slot."""
        return self._throughput(batch.model).seconds(batch.work)

    def _seconds(self, model: str, work: float) -> float:
        return work / self._throughput(model).tokens_per_s

    def _count(self, job: Job, tokens: int, texts: int, work: float) -> None:
        assert job.queue is not None
        job.queue.tokens += tokens
        job.queue.lane.tokens += tokens
        job.queue.texts += texts
        # Rounding of the sums must not leave any work.
        job.queue.work = job.queue.work + work if job.queue.tokens else 0.0
        self.tokens += tokens
        self.texts += texts


def finish_s(
    own_s: float,
    others: Sequence[tuple[float, float]],
    lanes: Sequence[tuple[float, float, float]] = (),
    rounds: int = 8,
) -> float:
    """Return the seconds until a queue has had `own_s` of work done while others take turns with it.

    `others` are, for each other queue of its lane, its waiting seconds and its recent share of the engine. Each is assumed
    to get what waits in it, or its share of the time if that is more, but no more than this queue. `lanes` are the same of
    each other lane, with its weight relative to this one: it gets no more than this lane times that. As the shares depend
    on the result, it is found by iteration, from below.
    """
    seconds = own_s
    for _ in range(rounds):
        before = seconds
        lane_s = own_s + sum(min(own_s, max(waiting_s, share * seconds)) for waiting_s, share in others)
        seconds = lane_s + sum(min(lane_s * each[2], max(each[0], each[1] * before)) for each in lanes)
        if seconds == before:
            break
    return seconds
