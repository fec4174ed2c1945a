"""A closed loop over HTTP: so many connections, each sends its next request when it has its answer.

A client of its own, because the usual ones cost as much CPU for a request as the service does.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Load:
    """What a closed loop gave."""

    connections: int
    seconds: float
    latencies_ms: list[float]
    """Sorted."""

    @property
    def requests_per_s(self) -> float:
        """Return the rate over the whole loop."""
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """Return the latency that this share of the requests stays under."""
        return self.latencies_ms[min(len(self.latencies_ms) - 1, int(share * len(self.latencies_ms)))]


def request_bytes(url: str, path: str, body: object) -> bytes:
    """Return a POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def closed_loop(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Send the requests round and round; raises RuntimeError at the first answer that is not 200."""
    return asyncio.run(_closed_loop(url, requests, connections, seconds))


async def _closed_loop(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    place = urlsplit(url)
    streams = [await asyncio.open_connection(place.hostname, place.port) for _ in range(connections)]
    latencies, start = list[float](), time.perf_counter()

    async def client(number: int) -> None:
        reader, writer = streams[number]
        at = number * len(requests) // connections
        while time.perf_counter() - start < seconds:
            sent = time.perf_counter()
            writer.write(requests[at % len(requests)])
            await _read_answer(reader)
            latencies.append(1000 * (time.perf_counter() - sent))
            at += 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    return Load(connections, time.perf_counter() - start, sorted(latencies))


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{head.splitlines()[0].decode()}: {body[:500].decode()}")
