"""Requests and answers as they go over a connection.

A client of its own, because the usual ones cost as much CPU for a request as the service does.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Request = Sequence[bytes]
"""Messages of one request: one, or several at once, each on a connection of its own."""


def request_bytes(url: str, path: str, body: object) -> bytes:
    """Return a POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def connect(url: str) -> Streams:
    """Open a connection."""
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port)


async def exchange(streams: Streams, message: bytes) -> bytes:
    """Send a message; return the answer's body. Raises RefusedError for any status but 200."""
    reader, writer = streams
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RefusedError(f"{head.splitlines()[0].decode()}: {body[:500].decode(errors='replace')}")
    return body


async def exchange_all(streams: Sequence[Streams], request: Request) -> None:
    """Send the messages of a request at once, each on its own connection, and await all answers."""
    if len(request) == 1:
        await exchange(streams[0], request[0])
    else:
        await asyncio.gather(*(exchange(*pair) for pair in zip(streams, request, strict=False)))


def ask(url: str, message: bytes) -> Any:
    """Send one message on a connection of its own; return the answer's JSON. Raises RefusedError, OSError, EOFError."""
    return ask_all(url, [message])[0]


def ask_all(url: str, messages: Sequence[bytes]) -> list[Any]:
    """Send messages at once, each on a connection of its own; return the JSON of each. Raises as `ask`."""

    async def together() -> list[bytes]:
        return await asyncio.gather(*(_ask(url, message) for message in messages))

    return [json.loads(body) for body in asyncio.run(together())]


async def _ask(url: str, message: bytes) -> bytes:
    streams = await connect(url)
    try:
        return await exchange(streams, message)
    finally:
        streams[1].close()


class RefusedError(RuntimeError):
    """An answer whose status is not 200."""
