"""Signs of life between the processes of a service, and the time without one.

Every process writes to a pipe of its parent's each second. The engine process watches its own batches; what it cannot watch
is itself, stopped or held by native code that lets no other thread run.
"""

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

BEAT_EVERY_S = 1.0
LOADING_HUNG_S = 60.0
"""Silence after which a process that starts or loads models is hung: native code may hold the interpreter for long then."""
SLOWEST_BATCHES = 20
"""An engine that is silent or at one batch for longer than so many of its slowest batches, and `hung_after_s`, is hung."""
LONGEST_STEP_S = 1.0
"""Time that one look adds: an observer that was stopped along with the observed has heard nothing either."""
_LIMIT = struct.Struct("<d")

Beat = Callable[[float], None]
"""Gives a sign of life: without another one for so many seconds the process is hung."""


@dataclass(slots=True)
class SilenceTimer:
    """Seconds since something happened, without those in which nobody looked."""

    seconds: float = 0.0
    _looked: float = field(default_factory=lambda: time.monotonic())

    def look(self, *, happened: bool) -> float:
        """Return the seconds, 0 if it happened since the last look."""
        now = time.monotonic()
        step, self._looked = min(now - self._looked, LONGEST_STEP_S), now
        self.seconds = 0.0 if happened else self.seconds + step
        return self.seconds


class HeartbeatMonitor:
    """A parent's end of the pipe."""

    def __init__(self, limit_s: float) -> None:
        """Make the pipe; the first sign has to come within `limit_s`, and says when the next has to."""
        self._read, self.child_fd = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.child_fd, False)  # a parent that is stopped must not stop its children
        self._silence, self._limit_s = SilenceTimer(), limit_s

    def started(self) -> None:
        """Close the child's end here."""
        os.close(self.child_fd)

    def silent_s(self) -> float | None:
        """Return the seconds without a sign if they are too many, else None."""
        signs = b""
        with suppress(BlockingIOError):
            signs = os.read(self._read, 2**16)
        if signs:
            (self._limit_s,) = _LIMIT.unpack(signs[-_LIMIT.size :])
        silent_s = self._silence.look(happened=bool(signs))
        return silent_s if silent_s > self._limit_s else None

    def close(self) -> None:
        """Close the parent's end."""
        os.close(self._read)


def heartbeat(fd: int) -> Beat:
    """Return what writes to a child's end of the pipe; a parent that is gone or does not read ends nobody."""

    def beat(hung_after_s: float) -> None:
        with suppress(OSError):
            os.write(fd, _LIMIT.pack(hung_after_s))

    return beat
