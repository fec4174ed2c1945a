"""Which requests are let in, and which waiting texts go into the next batch. Pure: no clock, no threads, no engine.

A job is one request's sequences (texts, or windows of long texts) for one model. It stands in the line of its
model and size (SIZES). In a line jobs finish one after another in the order of arrival; the lines take equal turns,
in engine seconds, so that a sentence does not wait behind documents and documents do not starve. A batch is filled
up to the model's token budget. There is no timer: whoever has a free engine slot calls `take`. Documents leave one of
several slots free while short texts come: a batch cannot be interrupted, and a window takes ten times as long as a sentence.

A job that would be done too late, at the speed of the last batches, is refused when it is offered.
docs/decisions/0013-overload.md says why it is so.
"""

import bisect
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bert.errors import QueueFullError, TooLateError
from service.scheduling.line import Job, Line
from service.scheduling.throughput import Speed

SIZES = (4, 64)
"""Full batches up to which a job stands in the first line (a text, some sentences) and in the second (a page, a
list); longer ones have the third."""
LONG = len(SIZES)
"""The size of the line for documents."""
MARGIN = 0.8
"""A job is let in if it should be done in this part of its time: the answer must still be decoded and sent, and
speeds change."""
HOPE = 0.8
"""A job that was begun is given up when it would miss its deadline even if it had the engine alone, in this part of
the time foreseen; one that was not begun, in all of it."""
SLOWER = 0.8
"""The lines are looked through again when the engine's speed has fallen to this part of what it was."""
UNMEASURED = Speed(0.0, 1e-9, 1)


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

    @property
    def is_long(self) -> bool:
        """Tell whether a document is in it."""
        return any(share.job.line is not None and share.job.line.size == LONG for share in self.shares)


@dataclass(slots=True)
class FairQueue:
    """The lines of jobs, bounded in tokens. `budgets` are tokens a batch, `speeds` how fast, by model."""

    max_tokens: int
    budgets: Mapping[str, int]
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    """Without a model's speed nothing is refused for its deadline."""
    slots: int = 1
    """Of the engine."""
    full: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the fastest batch, by model: taken where so much waits that everyone waits for several batches anyhow."""
    unit: str = "tokens"
    """Unit of job sizes, for messages."""
    tokens: int = 0
    """Waiting tokens, those in batches not counted."""
    texts: int = 0
    expired: list[Job] = field(default_factory=list)
    """Jobs that `take` dropped because their deadline had passed or could not be met any more.

    The caller tells their clients and clears it.
    """
    _lines: dict[tuple[str, int], Line] = field(default_factory=dict)
    _alone: deque[Batch] = field(default_factory=deque)
    _virtual_s: float = 0.0
    """`served_s` of the line that last had its turn: where a line that was empty starts."""

    def offer(self, job: Job, now: float = 0.0, *, engine_is_idle: bool = False) -> None:
        """Put a job at the back of its line, whole.

        Raises QueueFullError if its tokens pass the bound, TooLateError if it could not be done by its deadline.
        Neither says more than is known: when nothing waits and nothing runs, the time that a job takes is a guess,
        and it is let in to see.
        """
        size, line = job.waiting_tokens, self._line_for(job)
        if self.tokens + size > self.max_tokens:
            excess_s = self._seconds(job.model, self.tokens + size - self.max_tokens)
            raise QueueFullError(self.tokens, self.max_tokens, excess_s, unit=self.unit)
        if self.tokens or not engine_is_idle:
            self._check_time(job, line, now)
        self.let_in(job)

    def let_in(self, job: Job) -> None:
        """Put a job at the back of its line, whatever waits already."""
        line = self._line_for(job)
        if not line.tokens:
            line.served_s = max(line.served_s, self._virtual_s)
        job.line = line
        line.jobs.append(job)
        self._count(job, job.waiting_tokens, len(job.sizes))

    def waiting(self, model: str) -> tuple[int, int]:
        """Return a model's tokens and texts that wait, those in batches not counted."""
        lines = [line for line in list(self._lines.values()) if line.model == model]
        return sum(line.tokens for line in lines), sum(line.texts for line in lines)

    def withdraw(self, job: Job) -> None:
        """Forget a job whose client left or whose deadline passed; a second time does nothing."""
        if not job.gone:
            job.gone = True
            if job.line is not None:
                self._count(job, -job.waiting_tokens, job.taken - len(job.sizes))

    def retry_alone(self, batch: Batch) -> None:
        """Put each job's share of a failed batch first in line, as a batch of its own."""
        self._alone.extend(Batch(batch.model, (share,)) for share in batch.shares if not share.job.gone)

    def take(self, now: float, free_slots: int = 1, long_running: int = 0) -> Batch | None:
        """Form the next batch, None if nobody waits. Drops jobs that are gone or cannot be done in time.

        With several free slots it takes only its part of what waits, so that the others get theirs. `long_running` are the
        slots that have a document: where all others have one, the last is for short texts while such come.
        """
        while self._alone:
            batch = self._alone.popleft()
            if not batch.shares[0].job.gone:
                return batch
        self._sweep(now)
        is_kept = self.slots > 1 and long_running >= self.slots - 1 and self._short_texts_come(now)
        waiting = self._in_turn(self._lines.values(), now)
        lines = [line for line in waiting if not (is_kept and line.size == LONG)]
        if not lines:
            return None
        own = [line for line in lines if line.model == lines[0].model]
        return self._fill(own, now, -(-self.tokens // free_slots))

    def refusal(self, job: Job, now: float) -> TooLateError:
        """Return what a job is told that was dropped before its deadline: the engine became slower."""
        waiting_s = sum(self._seconds(line.model, line.tokens) for line in self._lines.values())
        needs_s = waiting_s + self._seconds(job.model, job.waiting_tokens)
        return self._too_late(waiting_s, needs_s, job.deadline - now)

    def _check_time(self, job: Job, line: Line, now: float) -> None:
        """Raise TooLateError unless the job should be done in MARGIN of its time."""
        waiting_s = {id(each): self._seconds(each.model, each.tokens) for each in self._lines.values()}
        own_s = waiting_s[id(line)] + self._seconds(job.model, job.waiting_tokens)
        others = [(waiting_s[id(each)], each.use(now)) for each in self._lines.values() if each is not line]
        running_s = self._speed(job.model).batch_s
        full = self.full.get(job.model, 0)
        if full and self.tokens >= self.slots * full:  # what runs is then a large batch
            running_s *= full / self.budgets[job.model]
        if line.size == LONG and self.slots > 1 and self._short_texts_come(now):
            own_s *= self.slots / (self.slots - 1)
        needs_s, has_s = finish_s(own_s, others) + running_s, job.deadline - now
        if needs_s > MARGIN * has_s:
            retry_s = min(needs_s - MARGIN * has_s, sum(waiting_s.values()) + running_s)
            raise self._too_late(retry_s, needs_s, has_s)

    def _too_late(self, retry_after_s: float, needs_s: float, has_s: float) -> TooLateError:
        return TooLateError(self.tokens, self.max_tokens, retry_after_s, needs_s, has_s, unit=self.unit)

    def _short_texts_come(self, now: float) -> bool:
        return any(line.size == 0 and (line.tokens or line.was_used(now)) for line in self._lines.values())

    def _in_turn(self, lines: Iterable[Line], now: float) -> list[Line]:
        """Return the lines with someone in them, the one that has had least first; of equals the shorter jobs'."""
        return sorted(
            (line for line in lines if self._has_head(line, now)), key=lambda line: (line.served_s, line.size)
        )

    def _has_head(self, line: Line, now: float) -> bool:
        """Drop what is over from the front of a line; tell whether anyone is left."""
        while line.jobs:
            job = line.jobs[0]
            if not job.gone and not self._is_hopeless(job, now):
                return True
            if not job.gone:
                self.expired.append(job)
            self.withdraw(line.jobs.popleft())
        return False

    def _is_hopeless(self, job: Job, now: float, ahead: int = 0) -> bool:
        """Tell whether a job cannot be done in time, with so many tokens before it in its line.

        While nobody else waits that is not foreseen but awaited: the engine would only stand still.
        """
        if job.deadline <= now:
            return True
        left, hope = job.waiting_tokens, HOPE if job.taken else 1.0
        return self.tokens > left and now + hope * self._seconds(job.model, ahead + left) > job.deadline

    def _sweep(self, now: float) -> None:
        """When the engine became slower, drop the jobs that cannot be done in time any more.

        They are told at once instead of when they come to the front, and their place is free.
        """
        for line in self._lines.values():
            rate = self._speed(line.model).tokens_per_s
            if rate < SLOWER * line.rate:
                line.rate, ahead = rate, 0
                for job in line.jobs:
                    if not job.gone and self._is_hopeless(job, now, ahead):
                        self.expired.append(job)
                        self.withdraw(job)
                    ahead += 0 if job.gone else job.waiting_tokens
            line.rate = max(line.rate, rate)

    def _fill(self, own: Sequence[Line], now: float, part: int) -> Batch:
        """Let lines of one model take turns until the budget, or this slot's part, is used.

        A line whose next sequence has no room keeps its place, and the others fill the rest.
        """
        model = own[0].model
        budget, shares = self._budget(own, now), list[Share]()
        left = min(budget, part)
        while share := self._next_share(self._in_turn(own, now), budget // 2, left, must=not shares):
            shares.append(share)
            left -= self._remove(share, now)
        return Batch(model, tuple(shares))

    def _budget(self, own: Sequence[Line], now: float) -> int:
        """Return the tokens of this batch: a larger one where that keeps nobody waiting who would not wait.

        While short texts come only they are counted, and a model that shares the engine has no large batches: they would be
        in the way of the next text.
        """
        model = own[0].model
        small = self.budgets[model]
        full = self.full.get(model, small)
        if any(line.model != model and line.was_used(now) for line in self._lines.values()):
            return small
        counted = [line for line in own if line.size == 0] if self._short_texts_come(now) else own
        return full if sum(line.tokens for line in counted) >= self.slots * full else small

    def _next_share(self, lines: Sequence[Line], turn: int, room: int, *, must: bool) -> Share | None:
        shares = (next_turn(line.jobs[0], turn=turn, room=room, must=must) for line in lines)
        return next((share for share in shares if share is not None), None)

    def _remove(self, share: Share, now: float) -> int:
        """Take a share out of its line and charge the line for it."""
        job, tokens = share.job, share.tokens
        assert job.line is not None
        job.taken = share.stop
        self._count(job, -tokens, share.start - share.stop)
        self._virtual_s = max(self._virtual_s, job.line.served_s)
        job.line.charge(self._seconds(job.model, tokens), now)
        if job.taken == len(job.sizes):
            job.line.jobs.popleft()
        return tokens

    def _line_for(self, job: Job) -> Line:
        size = bisect.bisect_left(SIZES, job.waiting_tokens / self.budgets[job.model])
        return self._lines.setdefault((job.model, size), Line(job.model, size))

    def _speed(self, model: str) -> Speed:
        return self.speeds.get(model, UNMEASURED)

    def _seconds(self, model: str, tokens: int) -> float:
        return tokens / self._speed(model).tokens_per_s

    def _count(self, job: Job, tokens: int, texts: int) -> None:
        assert job.line is not None
        job.line.tokens += tokens
        job.line.texts += texts
        self.tokens += tokens
        self.texts += texts


def finish_s(own_s: float, others: Sequence[tuple[float, float]], rounds: int = 8) -> float:
    """Return when a line will have done `own_s` of work while others take turns with it.

    Each other line has `waiting_s` of work and lately used a part `use` of the engine: it will go on so. But no
    line gets more than the own one while that waits. The time is on both sides of the equation; the rounds
    come near it from below.
    """
    seconds = own_s
    for _ in range(rounds):
        before = seconds
        seconds = own_s + sum(min(own_s, max(waiting_s, use * seconds)) for waiting_s, use in others)
        if seconds == before:
            break
    return seconds


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
