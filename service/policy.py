"""Which waiting texts go into the next batch. Pure: no clock of its own, no threads, no engine.

A job is one request's sequences (texts, or windows of long texts) for one model. Jobs stand in line by
arrival. A batch is filled from the front up to the model's token budget. One job takes at most half a budget
in a turn; one that has more goes to the back of the line, so a document of a hundred windows and a sentence
take turns. There is no timer: whoever has a free engine slot calls `take`.
"""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bert.errors import QueueFullError


@dataclass(slots=True, eq=False)
class Job:
    """One request's sequences for one model; `sizes` are their lengths in tokens."""

    model: str
    sizes: Sequence[int]
    deadline: float = float("inf")
    """On the caller's clock; past it the job is dropped instead of taken."""
    taken: int = 0
    """How many sequences are in batches already, from the front."""
    ticket: int = 0
    """Place in line over all models; renewed when the job goes to the back."""
    gone: bool = False
    """Whether nobody waits for it any more."""

    @property
    def waiting_tokens(self) -> int:
        """Return the tokens that are not in a batch yet."""
        return sum(self.sizes[self.taken :])


@dataclass(frozen=True, slots=True)
class Share:
    """The sequences [start, stop) of a job."""

    job: Job
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Return the tokens of these sequences."""
        return sum(self.job.sizes[self.start : self.stop])


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs together on one model."""

    model: str
    shares: tuple[Share, ...]

    @property
    def tokens(self) -> int:
        """Return the tokens of the batch, without padding."""
        return sum(share.tokens for share in self.shares)

    @property
    def texts(self) -> int:
        """Return the number of sequences."""
        return sum(share.stop - share.start for share in self.shares)


@dataclass(slots=True)
class FairQueue:
    """The line of jobs, bounded in tokens. `budgets` are tokens a batch, by model."""

    max_tokens: int
    budgets: Mapping[str, int]
    tokens: int = 0
    """Waiting tokens, those in batches not counted."""
    texts: int = 0
    expired: list[Job] = field(default_factory=list)
    """Jobs that `take` dropped because their deadline had passed.

    The caller tells their clients and clears it.
    """
    _lines: dict[str, deque[Job]] = field(default_factory=dict)
    _alone: deque[Batch] = field(default_factory=deque)
    _tickets: "itertools.count[int]" = field(default_factory=itertools.count)

    def offer(self, job: Job) -> None:
        """Put a job at the back of the line, whole; raises QueueFullError if its tokens pass the bound."""
        size = job.waiting_tokens
        if self.tokens + size > self.max_tokens:
            raise QueueFullError(self.tokens, self.max_tokens, 1.0)
        self._count(size, len(job.sizes))
        self._to_back(job)

    def withdraw(self, job: Job) -> None:
        """Forget a job whose client left or whose deadline passed; a second time does nothing."""
        if not job.gone:
            job.gone = True
            self._count(-job.waiting_tokens, job.taken - len(job.sizes))

    def retry_alone(self, batch: Batch) -> None:
        """Put each job's share of a failed batch first in line, as a batch of its own."""
        self._alone.extend(Batch(batch.model, (share,)) for share in batch.shares if not share.job.gone)

    def take(self, now: float, free_slots: int = 1) -> Batch | None:
        """Form the next batch, None if nobody waits. Drops jobs that are gone or past their deadline.

        With several free slots it takes only its part of what waits, so that the others get theirs.
        """
        while self._alone:
            batch = self._alone.popleft()
            if not batch.shares[0].job.gone:
                return batch
        heads = [(line[0].ticket, model) for model, line in self._lines.items() if self._has_head(line, now)]
        return self._fill(min(heads)[1], now, -(-self.tokens // free_slots)) if heads else None

    def _has_head(self, line: deque[Job], now: float) -> bool:
        """Drop what is over from the front of a line; tell whether anyone is left."""
        while line:
            job = line[0]
            if not job.gone and job.deadline > now:
                return True
            if not job.gone:
                self.expired.append(job)
            self.withdraw(line.popleft())
        return False

    def _fill(self, model: str, now: float, part: int) -> Batch:
        """Take turns from the front of a line that has a head until the budget, or this slot's part, is used."""
        line, budget = self._lines[model], self.budgets[model]
        left, shares = min(budget, part), list[Share]()
        while self._has_head(line, now):
            share = next_turn(line[0], turn=budget // 2, room=left, must=not shares)
            if share is None:
                break
            shares.append(share)
            left -= self._remove(share)
            job = line.popleft()
            if job.taken < len(job.sizes):
                self._to_back(job)
        return Batch(model, tuple(shares))

    def _to_back(self, job: Job) -> None:
        job.ticket = next(self._tickets)
        self._lines.setdefault(job.model, deque()).append(job)

    def _remove(self, share: Share) -> int:
        tokens = share.tokens
        share.job.taken = share.stop
        self._count(-tokens, share.start - share.stop)
        return tokens

    def _count(self, tokens: int, texts: int) -> None:
        self.tokens += tokens
        self.texts += texts


def next_turn(job: Job, *, turn: int, room: int, must: bool) -> Share | None:
    """Return what a job takes in its turn: sequences up to `turn` tokens, at least one.

    None if the first does not fit in `room`, unless it `must` be taken: a sequence longer than a whole budget
    runs alone.
    """
    start = stop = job.taken
    tokens = 0
    while stop < len(job.sizes):
        size = job.sizes[stop]
        first = stop == start
        fits = tokens + size <= room and (first or tokens + size <= turn)
        if not fits and not (first and must):
            break
        tokens += size
        stop += 1
    return Share(job, start, stop) if stop > start else None
