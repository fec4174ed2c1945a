"""A batch: parts of jobs that run together."""

from dataclasses import dataclass

from service.scheduling.job_queue import Job


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
    def texts(self) -> int:
        """Return the number of sequences."""
        return sum(item.stop - item.start for item in self.items)


def next_item(job: Job, *, max_tokens: int, room: int, force: bool) -> BatchItem | None:
    """Return a job's next sequences, at least one, of up to `max_tokens` and no more than `room`.

    Returns None if the first does not fit in `room`, unless `force`: a sequence longer than a budget runs alone.
    """
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
