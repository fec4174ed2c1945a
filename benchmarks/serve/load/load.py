"""A closed loop over HTTP: so many connections, each sends its next request when it has its answer."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.serve.load.wire import Request, connect, exchange_all
from benchmarks.serve.report.percentiles import percentile


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
