"""Jobs, and the lines in which they wait."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

USE_MEMORY_S = 10.0
"""A line's use of the engine counts a third after so long."""


@dataclass(slots=True, eq=False)
class Job:
    """One request's sequences for one model; `sizes` are their lengths in tokens."""

    model: str
    sizes: Sequence[int]
    deadline: float = float("inf")
    """On the caller's clock; past it the job is dropped instead of taken."""
    taken: int = 0
    """How many sequences are in batches already, from the front."""
    line: "Line | None" = None
    """Where it stands, once it is let in."""
    gone: bool = False
    """Whether nobody waits for it any more."""

    @property
    def waiting_tokens(self) -> int:
        """Return the tokens that are not in a batch yet."""
        return sum(self.sizes[self.taken :])


@dataclass(slots=True, eq=False)
class Line:
    """The waiting jobs of one model and size, in the order of arrival."""

    model: str
    size: int
    """0 for the shortest."""
    jobs: deque[Job] = field(default_factory=deque)
    tokens: int = 0
    """Tokens of its jobs, without those in batches."""
    texts: int = 0
    """Of its jobs, those in batches not counted."""
    served_s: float = 0.0
    """Engine seconds that it has had, or would have if it had never been empty."""
    rate: float = 0.0
    """Tokens a second of its model when its jobs were last looked through, or more since."""
    _use: float = 0.0
    _used_at: float | None = None

    def use(self, now: float) -> float:
        """Return the part of the engine's time that it lately took."""
        return 0.0 if self._used_at is None else self._use * math.exp((self._used_at - now) / USE_MEMORY_S)

    def was_used(self, now: float) -> bool:
        """Tell whether it had the engine lately, for however short a time."""
        return self._used_at is not None and now - self._used_at < USE_MEMORY_S

    def charge(self, seconds: float, now: float) -> None:
        """Note that the engine runs for it."""
        self.served_s += seconds
        self._use, self._used_at = self.use(now) + seconds / USE_MEMORY_S, now
