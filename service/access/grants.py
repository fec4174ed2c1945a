"""Rights of an API key: its models, its rates, and how much of them is left."""

import math
import time
import zlib
from collections.abc import Callable

from pydantic import Field

from bert.errors import RateLimitedError
from bert.settings import SettingsPart

Clock = Callable[[], float]


class Rules(SettingsPart):
    """Rights of a key, as an entry of the file of keys states them."""

    models: list[str] | None = None
    """Names of the models that it may use; None for all."""
    requests_per_second: float | None = Field(None, gt=0)
    tokens_per_second: float | None = Field(None, gt=0)
    concurrency: int | None = Field(None, ge=1)
    """Most requests in progress at once."""
    share: float = Field(1.0, ge=0.01, le=100)
    """Weight of its turns in the queue."""
    admin: bool = False
    """It may load and unload models."""


class Rate:
    """A bucket of units that fills at a steady rate and holds those of a second, at least one.

    What costs more than it holds is taken from a full bucket, and the next waits until that is paid off.
    """

    def __init__(self, per_s: float, clock: Clock) -> None:
        """Start full."""
        self.per_s, self._clock, self.most = per_s, clock, max(1.0, per_s)
        self._full_at = -math.inf
        """Time at which it is full again; it says how much it holds."""

    @property
    def held(self) -> float:
        """Return the units that it holds; below 0 if it is in debt."""
        return self.most - max(0.0, self._full_at - self._clock()) * self.per_s

    def wait_s(self, cost: float) -> float:
        """Return the seconds until a cost may be taken; 0 if it may now."""
        return max(0.0, round((min(cost, self.most) - self.held) / self.per_s, 6))

    def take(self, cost: float) -> None:
        """Take a cost, or give it back if it is negative."""
        self._full_at = max(self._full_at, self._clock()) + cost / self.per_s


class Places:
    """Places for a key's requests in progress, shared by all processes of a service.

    Each is a byte of a file: who has a place holds the lock on it, which the system releases when a process ends.
    """

    def __init__(self, name: str, most: int, file: int | None) -> None:
        """Take none yet; `file` is a descriptor, None for a service of one process."""
        self.most, self._file, self._start = most, file, zlib.crc32(name.encode()) << 20
        self._taken = set[int]()

    def take(self) -> bool:
        """Take a place; return whether there was one."""
        free = (place for place in range(self.most) if place not in self._taken and self._lock(place))
        if (place := next(free, None)) is None:
            return False
        self._taken.add(place)
        return True

    def give_back(self) -> None:
        """Give back any that was taken."""
        self._lock(self._taken.pop(), release=True)

    def _lock(self, place: int, *, release: bool = False) -> bool:
        if self._file is None:
            return True
        import fcntl  # not on Windows

        how = fcntl.LOCK_UN if release else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.lockf(self._file, how, 1, self._start + place)
        except OSError as error:  # another process has it, or there are no locks: then each counts by itself
            return not isinstance(error, BlockingIOError | PermissionError)
        return True


class Grant:
    """A key and what it has asked for; one for each process that speaks HTTP."""

    def __init__(
        self,
        name: str,
        rules: Rules,
        processes: int = 1,
        clock: Clock = time.monotonic,
        file: int | None = None,
    ) -> None:
        """Allow this process its part of the key's rates; `file` is where all processes take its places."""
        self.name, self.rules = name, rules
        self._models = None if rules.models is None else frozenset(rules.models)
        self._requests = (
            Rate(rules.requests_per_second / processes, clock) if rules.requests_per_second else None
        )
        self._tokens = Rate(rules.tokens_per_second / processes, clock) if rules.tokens_per_second else None
        self._places = Places(name, rules.concurrency, file) if rules.concurrency else None

    def may_use(self, model: str) -> bool:
        """Tell whether it may use a model."""
        return self._models is None or model in self._models

    def enter(self) -> None:
        """Begin a request, which `leave` ends. Raises RateLimitedError if there are too many."""
        if self._requests is not None:
            self._take(self._requests, 1, "requests")
        if self._places is not None and not self._places.take():
            if self._requests is not None:
                self._requests.take(-1)
            what = f"{self._places.most} requests in progress, and may have no more"
            raise RateLimitedError(self.name, what, 1.0, self._places.most)

    def leave(self) -> None:
        """End a request."""
        if self._places is not None:
            self._places.give_back()

    def spend(self, tokens: int) -> None:
        """Count tokens of a request that is to run. Raises RateLimitedError if there are too many."""
        if self._tokens is not None:
            self._take(self._tokens, tokens, "tokens")

    def refund(self, tokens: int) -> None:
        """Give back the tokens of a request that was not taken."""
        if self._tokens is not None:
            self._tokens.take(-tokens)

    def requests_left(self) -> tuple[int, int, float] | None:
        """Return how many requests it may send at once, how many of them are left, and the seconds until all are."""
        rate = self._requests
        return (
            None if rate is None else (int(rate.most), max(0, int(rate.held + 1e-6)), rate.wait_s(rate.most))
        )

    def _take(self, rate: Rate, cost: int, unit: str) -> None:
        if (wait_s := rate.wait_s(cost)) > 0:
            what = f"used its {unit} ({rate.per_s:g} a second)"
            raise RateLimitedError(self.name, what, wait_s, int(rate.most))
        rate.take(cost)
