"""Connection between a frontend and the engine process: whole messages over a Unix socket."""

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from service.workers import messages
from service.workers.messages import Message

_SIZE = struct.Struct("<I")


class Connection(asyncio.Protocol):
    """Sends and receives messages; those sent in one turn of the event loop leave in one write."""

    def __init__(
        self,
        received: Callable[["Connection", Message], None],
        lost: Callable[["Connection"], None],
        made: Callable[["Connection"], None] = lambda _: None,
    ) -> None:
        """Call `made`, `received` and `lost` with this connection."""
        self._made, self._received, self._lost = made, received, lost
        self._transport: asyncio.WriteTransport | None = None
        self._in, self._out = bytearray(), list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the other end closed."""
        self._transport = None
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Deliver the messages that are complete."""
        self._in += data
        start, view = 0, memoryview(self._in)
        complete = list[Message]()
        while len(view) - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, start)
            body = start + _SIZE.size
            if len(view) - body < size:
                break
            complete.append(messages.read(view[body : body + size]))
            start = body + size
        view.release()
        del self._in[:start]
        for message in complete:
            self._received(self, message)

    def send(self, message: Message) -> None:
        """Send a message; no-op if the other end is gone."""
        if self._transport is None:
            return
        data = messages.write(message)
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (_SIZE.pack(len(data)), data)

    def close(self) -> None:
        """Close the connection once all messages have left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()
