"""Clients that do not go away: each sends its next request at once, or some time after it was refused."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.serve.load.wire import Streams, connect

BROKEN_PAUSE_S = 0.1


@dataclass(slots=True)
class Storm:
    """What clients got."""

    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    """Number of answers by status, and of broken connections by the error's name."""
    latencies_ms: list[float] = field(default_factory=list)
    """Of the answers with 200."""

    @property
    def answered_per_s(self) -> float:
        """Return the answers with 200 a second."""
        return self.statuses["200"] / self.seconds


async def storm(url: str, request: bytes, clients: int, seconds: float, back_s: float = 0.5) -> Storm:
    """Send a request from each client until the time is over, `back_s` later after a 429; wait for the last answers."""
    found, start = Storm(), time.monotonic()

    async def client() -> None:
        streams: Streams | None = None
        while time.monotonic() < start + seconds:
            try:
                streams = streams or await connect(url)
                sent = time.monotonic()
                status = await status_of(streams, request)
            except (OSError, EOFError) as error:
                found.statuses[type(error).__name__] += 1
                streams = None
                await asyncio.sleep(BROKEN_PAUSE_S)
                continue
            found.statuses[status] += 1
            if status == "200":
                found.latencies_ms.append(1000 * (time.monotonic() - sent))
            elif status == "429":
                await asyncio.sleep(back_s)
        if streams is not None:
            streams[1].close()

    await asyncio.gather(*(client() for _ in range(clients)))
    found.seconds = time.monotonic() - start
    found.latencies_ms.sort()
    return found


async def status_of(streams: Streams, message: bytes) -> str:
    """Send a message, read the answer, and return its status."""
    reader, writer = streams
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return head[9:12].decode()
