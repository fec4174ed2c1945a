"""One connection between a frontend and the engine process: whole messages over a Unix socket."""

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from service.workers import messages
from service.workers.messages import Message

_SIZE = struct.Struct("<I")


class Link(asyncio.Protocol):
    """Sends and receives messages. Those sent in one turn of the event loop leave in one write."""

    def __init__(
        self,
        received: Callable[["Link", Message], None],
        lost: Callable[["Link"], None],
        made: Callable[["Link"], None] = lambda _: None,
    ) -> None:
        """`made`, `received` and `lost` are called with this link."""
        self._made, self._received, self._lost = made, received, lost
        self._transport: asyncio.WriteTransport | None = None
        self._in, self._out = bytearray(), list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is open."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that the other end is gone."""
        self._transport = None
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Hand over the messages that are whole."""
        self._in += data
        at, view = 0, memoryview(self._in)
        whole = list[Message]()
        while len(view) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, at)
            start = at + _SIZE.size
            if len(view) - start < size:
                break
            whole.append(messages.read(view[start : start + size]))
            at = start + size
        view.release()
        del self._in[:at]
        for message in whole:
            self._received(self, message)

    def send(self, message: Message) -> None:
        """Send a message, or nothing if the other end is gone."""
        if self._transport is None:
            return
        data = messages.write(message)
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (_SIZE.pack(len(data)), data)

    def close(self) -> None:
        """Close it, when what was sent has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()
