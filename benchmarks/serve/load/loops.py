"""Loops over HTTP: closed, where each connection sends its next request when it has its answer, and open.

In an open loop requests arrive at a constant rate, or at random times, whatever the service does with them. Each latency
counts from the moment at which its request was due, so a stall is felt by all that were due in it. A thread sleeps until
each is due, because an event loop's own timers are up to a millisecond late; no request waits for a free connection, one
more is opened. Where the client itself was late, it says so.
"""

import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate

from benchmarks.serve.load.wire import Request, Streams, connect, exchange_all
from benchmarks.serve.report.percentiles import percentile

LATE_MS, LATE_SHARE = 2.0, 0.01
"""The client was late if it sent more than this share of the requests more than so long after they were due."""
IDLE_S = 2.0
"""A connection unused for so long is opened anew: servers close idle ones, the usual ones after 5 seconds."""
SPARE_CONNECTIONS, SPARE_REQUESTS = 16, 4
"""Opened beforehand: so many, and enough for so many requests."""


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a closed loop."""

    connections: int
    seconds: float
    latencies_ms: list[float]
    """Sorted."""

    @property
    def requests_per_s(self) -> float:
        """Return the rate over the whole loop."""
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """Return the latency that this share of the requests does not pass."""
        return percentile(self.latencies_ms, share)


def closed_loop(url: str, requests: Sequence[Request], connections: int, seconds: float) -> Load:
    """Send the requests round and round; raises RuntimeError at the first answer that is not 200.

    A request of several messages counts as one, done when all are answered; it takes as many connections.
    """
    return asyncio.run(_closed_loop(url, requests, connections, seconds))


async def _closed_loop(url: str, requests: Sequence[Request], connections: int, seconds: float) -> Load:
    messages = max(len(request) for request in requests)
    streams = [[await connect(url) for _ in range(messages)] for _ in range(connections)]
    latencies, start = list[float](), time.perf_counter()

    async def client(number: int) -> None:
        at = number * len(requests) // connections
        while time.perf_counter() - start < seconds:
            sent = time.perf_counter()
            await exchange_all(streams[number], requests[at % len(requests)])
            latencies.append(1000 * (time.perf_counter() - sent))
            at += 1

    try:
        await asyncio.gather(*(client(number) for number in range(connections)))
    finally:
        for _, writer in (pair for group in streams for pair in group):
            writer.close()
    return Load(connections, time.perf_counter() - start, sorted(latencies))


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Result of an open loop."""

    rate: float
    """Requests that were due, per second."""
    seconds: float
    """Seconds from the first due moment to the last answer."""
    latencies_ms: list[float]
    """Sorted; from the moment due to the answer. One without an answer counts with the time until it was given up."""
    lateness_ms: list[float]
    """Sorted; from the moment due until the client had sent it."""
    failures: int
    """Answers that were not 200, or did not come."""
    connections: int
    """Most open at once."""

    def percentile_ms(self, share: float) -> float:
        """Return the latency that this share of the requests does not pass."""
        return percentile(self.latencies_ms, share)

    @property
    def client_was_late(self) -> bool:
        """Tell whether the client, not the service, held up requests: then the latencies are partly its own."""
        return was_late(self.lateness_ms)


def due_times(rate: float, seconds: float) -> list[float]:
    """Return when each request is due, seconds from the start: request i at i / rate. At least one."""
    if rate <= 0:
        raise ValueError(f"rate ({rate}) must be above 0")
    return [number / rate for number in range(max(1, int(rate * seconds)))]


def random_times(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Return moments that are independent of one another (a Poisson process): so many users' requests arrive."""
    chance = random.Random(seed)
    return list(accumulate(chance.expovariate(rate) for _ in due_times(rate, seconds)))


def was_late(lateness_ms: Sequence[float]) -> bool:
    """Tell whether more than LATE_SHARE of these were over LATE_MS."""
    return sum(late > LATE_MS for late in lateness_ms) > LATE_SHARE * len(lateness_ms)


def open_loop(
    url: str,
    requests: Sequence[Request],
    rate: float,
    seconds: float,
    patience_s: float = 60.0,
    *,
    at_random: bool = False,
) -> OpenLoad:
    """Send the requests round and round at a constant rate, or at `random_times` of that rate on average.

    Gives up what is not answered `patience_s` after the last.
    """
    due_s = random_times(rate, seconds) if at_random else due_times(rate, seconds)
    arrivals = _Arrivals(url, requests, due_s, rate)
    with _undisturbed():
        return asyncio.run(arrivals.run(patience_s))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep pauses of the client's own out: a collection takes milliseconds, a thread may hold another one up for five.

    Where that is allowed this thread, and the one that it starts, go before the service's: a client on another machine
    would not wait for the service's cores.
    """
    interval, thread = sys.getswitchinterval(), threading.get_native_id()
    nice = os.nice(0)
    gc.collect()
    gc.disable()
    sys.setswitchinterval(0.0002)
    with suppress(OSError):  # not allowed; or not Linux, where a thread has no niceness of its own
        os.setpriority(os.PRIO_PROCESS, thread, -15)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        sys.setswitchinterval(interval)
        gc.enable()


@dataclass(slots=True)
class _Arrivals:
    url: str
    requests: Sequence[Request]
    due_s: Sequence[float]
    rate: float
    idle: list[tuple[float, Streams]] = field(default_factory=list)
    """Since when, and which; the last one used is taken first."""
    open: int = 0
    most_open: int = 0
    failures: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    lateness_ms: list[float] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, patience_s: float) -> OpenLoad:
        count = max(SPARE_CONNECTIONS, SPARE_REQUESTS * max(len(request) for request in self.requests))
        spare = [await connect(self.url) for _ in range(count)]
        self.open = self.most_open = len(spare)
        self.idle += [(time.perf_counter(), streams) for streams in spare]
        all_sent, start = asyncio.Event(), time.perf_counter() + 0.05
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._pace, args=(loop, start, all_sent), daemon=True).start()
        await all_sent.wait()
        if self.tasks:
            _, unanswered = await asyncio.wait(self.tasks, timeout=patience_s)
            for task in unanswered:
                task.cancel()
            await asyncio.gather(*unanswered, return_exceptions=True)
        seconds = time.perf_counter() - start
        for _, (_, writer) in self.idle:
            writer.close()
        latencies, lateness = sorted(self.latencies_ms), sorted(self.lateness_ms)
        return OpenLoad(self.rate, seconds, latencies, lateness, self.failures, self.most_open)

    def _pace(self, loop: asyncio.AbstractEventLoop, start: float, all_sent: asyncio.Event) -> None:
        """Sleep until each request is due, on a thread of its own."""
        for number, offset in enumerate(self.due_s):
            while (left := start + offset - time.perf_counter()) > 0:
                time.sleep(left)
            loop.call_soon_threadsafe(self._launch, number, start + offset)
        loop.call_soon_threadsafe(all_sent.set)

    def _launch(self, number: int, due: float) -> None:
        task = asyncio.ensure_future(self._send(self.requests[number % len(self.requests)], due))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, request: Request, due: float) -> None:
        streams: list[Streams] = []
        sent, answered = False, False
        try:
            for _ in request:
                streams.append(self._take() or await self._open())
            self.lateness_ms.append(1000 * (time.perf_counter() - due))
            sent = True
            await exchange_all(streams, request)
            answered = True
        except (OSError, EOFError, RuntimeError, ValueError, asyncio.CancelledError):
            self.failures += 1  # counted, not raised: an overloaded service is what is measured
        self.latencies_ms.append(1000 * (time.perf_counter() - due))
        if not sent:
            self.lateness_ms.append(1000 * (time.perf_counter() - due))
        for pair in streams:
            self._give_back(pair, answered)

    def _take(self) -> Streams | None:
        while self.idle:
            since, streams = self.idle.pop()
            if time.perf_counter() - since < IDLE_S and not streams[0].at_eof():
                return streams
            streams[1].close()
            self.open -= 1
        return None

    async def _open(self) -> Streams:
        streams = await connect(self.url)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return streams

    def _give_back(self, streams: Streams, usable: bool) -> None:
        if usable:
            self.idle.append((time.perf_counter(), streams))
        else:
            streams[1].close()
            self.open -= 1
