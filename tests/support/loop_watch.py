"""How long an event loop is held, in CPU time: work of other processes does not count.

It is that of the loop's own thread between two of its turns, or that of another thread which kept the interpreter's lock
from it meanwhile. While the loop could run and had no core, the other kept nothing from it. The bound is 20 ms on the
machine that this was written on, and in proportion to a fixed amount of work on others.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.live import Live

ATTEMPTS = 4
"""What holds the loop holds it each time; what the machine did to it does not come back."""
TICK_S = 0.001
ALLOWED = 4
"""Times the work of `calibrate`, which takes 5 ms of a Zen 4 core: 20 ms there."""


def calibrate() -> float:
    """Return the CPU seconds of a fixed amount of work."""

    def once() -> float:
        start = time.thread_time()
        sum(range(500_000))
        return time.thread_time() - start

    return min(once() for _ in range(5))


def ready_s() -> float:
    """Return the seconds for which this thread could run and had no core; 0 where the kernel does not tell."""
    file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(file.read_text().split()[1]) / 1e9 if file.exists() else 0.0


@dataclass
class LoopWatch:
    """Measures the longest hold of an event loop, while it runs there as a task."""

    clients: set[int]
    """Threads of the test, which are no part of the service."""
    longest_s: float = 0.0
    by: str = ""
    before: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        waited = ready_s()
        while True:
            spent, own = self._spent(), threading.get_ident()
            before, waited = waited, ready_s()
            for ident, seconds in spent.items():
                held_s = seconds - self.before.get(ident, seconds)
                held_s -= 0.0 if ident == own else waited - before
                if held_s > self.longest_s:
                    names = {thread.ident: thread.name for thread in threading.enumerate()}
                    self.longest_s, self.by = held_s, names.get(ident, "?")
            self.before = spent
            await asyncio.sleep(TICK_S)

    def _spent(self) -> dict[int, float]:
        """Return the CPU seconds of each thread of the service."""
        found = {}
        for thread in threading.enumerate():
            if thread.ident is not None and thread.ident not in self.clients:
                try:
                    found[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                except OSError:  # it has ended
                    continue
        return found


@contextmanager
def watching(live: Live) -> Iterator[LoopWatch]:
    watch = LoopWatch({threading.get_ident()})
    loop = live.server.servers[0].get_loop()
    running = asyncio.run_coroutine_threadsafe(watch.run(), loop)
    try:
        yield watch
    finally:
        running.cancel()
