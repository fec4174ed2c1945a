"""Clients that do not go away: they send again at once, some time after a refusal, or at a constant rate."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.serve.load.wire import Streams, connect

BROKEN_PAUSE_S = 0.1


@dataclass(slots=True)
class Storm:
    """Answers that clients got to a storm of requests."""

    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    """Number of answers by status, and of broken connections by the error's name."""
    latencies_ms: list[float] = field(default_factory=list)
    """Latency of each answer with status 200, in the order in which they came."""
    capacity: float = 0.0
    """Answers a second that are possible, where that was measured."""

    @property
    def answered_per_s(self) -> float:
        """Return the answers with 200 a second."""
        return self.statuses["200"] / self.seconds


async def storm(
    url: str,
    requests: Iterable[bytes],
    clients: int,
    seconds: float,
    back_s: float = 0.5,
    found: Storm | None = None,
) -> Storm:
    """Send the next request from each client until the time is over, `back_s` later after a 429; await the last answers."""
    found, start, left = found or Storm(), time.monotonic(), iter(requests)

    async def client() -> None:
        streams: Streams | None = None
        while time.monotonic() < start + seconds:
            streams, status = await _ask(url, streams, next(left), found)
            if status == "429":
                await asyncio.sleep(back_s)
        _close(streams)

    await asyncio.gather(*(client() for _ in range(clients)))
    found.seconds = time.monotonic() - start
    return found


async def paced(
    url: str, request: bytes, rate: float, clients: int, seconds: float, found: Storm | None = None
) -> Storm:
    """Send a request `rate` times a second, as far as a client is free then; await the last answers."""
    found, start, due = found or Storm(), time.monotonic(), itertools.count()

    async def client() -> None:
        streams: Streams | None = None
        while (at := start + next(due) / rate) < start + seconds:
            await asyncio.sleep(at - time.monotonic())
            streams, _ = await _ask(url, streams, request, found)
        _close(streams)

    await asyncio.gather(*(client() for _ in range(clients)))
    found.seconds = time.monotonic() - start
    return found


async def _ask(url: str, streams: Streams | None, request: bytes, found: Storm) -> tuple[Streams | None, str]:
    """Send a request and note its answer; return the connection, which may be new or none, and the status."""
    try:
        streams = streams or await connect(url)
        sent = time.monotonic()
        status = await status_of(streams, request)
    except (OSError, EOFError) as error:
        found.statuses[type(error).__name__] += 1
        _close(streams)
        await asyncio.sleep(BROKEN_PAUSE_S)
        return None, ""
    found.statuses[status] += 1
    if status == "200":
        found.latencies_ms.append(1000 * (time.monotonic() - sent))
    return streams, status


def _close(streams: Streams | None) -> None:
    if streams is not None:
        streams[1].close()


async def status_of(streams: Streams, message: bytes) -> str:
    """Send a message, read the answer, and return its status."""
    reader, writer = streams
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return head[9:12].decode()
