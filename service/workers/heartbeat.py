"""Heartbeats from the processes of a service to their parent, and the time without one.

Every process writes to a pipe of its parent each second. The engine process watches its own batches. It cannot watch
itself: it may be stopped, or held by native code that lets no other thread run.
"""

import os
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

BEAT_EVERY_S = 1.0
LOADING_HUNG_S = 60.0
"""Seconds of silence after which a process that starts or loads models is hung; native code may hold the interpreter."""
MAX_STEP_S = 1.0
"""Largest time added by one update: an observer that was stopped along with the observed has heard nothing either."""
_LIMIT = struct.Struct("<d")

Beat = Callable[[float], None]
"""Sends a heartbeat: without another one for this many seconds the process is hung."""


@dataclass(slots=True)
class SilenceTimer:
    """Seconds since something last happened, without those in which nobody looked."""

    seconds: float = 0.0
    _updated: float = field(default_factory=lambda: time.monotonic())

    def update(self, *, happened: bool) -> float:
        """Return the seconds, 0 if it happened since the last update."""
        now = time.monotonic()
        step, self._updated = min(now - self._updated, MAX_STEP_S), now
        self.seconds = 0.0 if happened else self.seconds + step
        return self.seconds


class HeartbeatMonitor:
    """The parent's end of a child's heartbeat pipe."""

    def __init__(self, limit_s: float) -> None:
        """Make the pipe. The first heartbeat is due within `limit_s`; each one says when the next is."""
        self._read, self.child_fd = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.child_fd, False)  # a parent that is stopped must not stop its children
        self._silence, self._limit_s = SilenceTimer(), limit_s

    def started(self) -> None:
        """Close the child's end in this process."""
        os.close(self.child_fd)

    def silent_s(self) -> float | None:
        """Return the seconds without a heartbeat if they are over the limit, else None."""
        beats = b""
        with suppress(BlockingIOError):
            beats = os.read(self._read, 2**16)
        if beats:
            (self._limit_s,) = _LIMIT.unpack(beats[-_LIMIT.size :])
        silent_s = self._silence.update(happened=bool(beats))
        return silent_s if silent_s > self._limit_s else None

    def close(self) -> None:
        """Close the parent's end."""
        os.close(self._read)


def heartbeat(fd: int) -> Beat:
    """Return a function that writes to a child's end of the pipe; no-op if the parent is gone or does not read."""

    def beat(hung_after_s: float) -> None:
        with suppress(OSError):
            os.write(fd, _LIMIT.pack(hung_after_s))

    return beat


def unread_s(fd: int) -> float:
    """Return the seconds for which the parent has read no heartbeat of this process, whose end of the pipe this is."""
    import fcntl  # not on Windows, where there is one process only
    import termios

    unread = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, unread)
    return BEAT_EVERY_S * (int.from_bytes(unread, sys.byteorder) // _LIMIT.size)
