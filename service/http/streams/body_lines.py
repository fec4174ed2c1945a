"""The lines of a request's body, which is spooled as it arrives."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from service.http.problems import ClientGoneError, ProblemError
from service.http.request_body import BODY_ERROR, GZIP, LAST_PART, content_coding, not_gzip
from service.http.streams.spool import BLOCK_BYTES, Spool, SpoolFile
from service.logs import LOGGER
from service.settings import ServeSettings


class BodyLines:
    """Lines of a body, counted from 1. `receive` must run beside their reader."""

    def __init__(self, request: Request, settings: ServeSettings, file: SpoolFile) -> None:
        """Raises the 415 of an unknown Content-Encoding."""
        self._request, self._max_line_bytes = request, settings.max_body_bytes
        is_plain = content_coding(request.scope) == "identity"
        self._gunzip = None if is_plain else zlib.decompressobj(wbits=GZIP)
        self.spool = Spool(file)
        self.last_line = time.monotonic()
        """Time on `time.monotonic` at which the end of a line, blank ones included, was last read."""
        self.is_whole = False
        """True once the whole body has arrived."""
        self.is_awaited = False
        """True while the reader of the lines waits for the client."""
        self.error: ProblemError | None = None
        """Why the rest of the body cannot be read."""

    async def receive(self) -> None:
        """Spool the body, and go on until cancelled. Raises ClientGoneError if the client leaves.

        After an error the rest of the body is dropped, so that a client that sends all of it first gets to read.
        """
        try:
            async for part in self._parts():
                await self.spool.write(part)
        except ProblemError as error:
            self.error = error
        except OSError as error:
            LOGGER.error("a stream's lines cannot be kept in a temporary file: %s", error)
            detail = f"the service has no room for lines that arrive before they are read ({error.strerror})"
            self.error = ProblemError(507, "no-room", detail)
        self.is_whole = True
        self.spool.end()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientGoneError

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes | ProblemError]]:
        """Yield each line that is not blank with its number; in place of one that is too long its problem.

        What follows the last line end is a line only if the body is whole: half of one would get a false response.
        """
        number, line, is_long = 1, bytearray(), False
        while block := await self._read():
            *ends, rest = block.split(b"\n")
            if ends:
                self.last_line = time.monotonic()
            for end in ends:
                line += end
                if is_long or len(line) > self._max_line_bytes:
                    yield number, self._too_long()
                elif not line.isspace() and line:
                    yield number, bytes(line)
                line, is_long = bytearray(), False
                number += 1
            line += rest
            if len(line) > self._max_line_bytes:
                line, is_long = bytearray(), True
            await asyncio.sleep(0)  # a block may be 65,536 blank lines
        if self.error is not None or self.spool.is_closed:
            return
        if is_long:
            yield number, self._too_long()
        elif line and not line.isspace():
            yield number, bytes(line)

    async def _read(self) -> bytes:
        self.is_awaited = True
        block = await self.spool.read()
        self.is_awaited = False
        return block

    async def _parts(self) -> AsyncIterator[bytes]:
        """Yield the body in parts of at most BLOCK_BYTES if it was compressed, else as it arrives."""
        more = True
        while more and not self.spool.is_closed:
            data, more = await self._next_part()
            self._request.scope["state"][LAST_PART] = time.monotonic()
            part = data
            while self._gunzip is not None and (data or len(part) == BLOCK_BYTES):
                part, data = await asyncio.to_thread(self._decompress, data)
                yield part
            if self._gunzip is None:
                yield data
            if error := self._request.scope["state"].get(BODY_ERROR):
                raise error
        if not more and self._gunzip is not None and not self._gunzip.eof:
            raise not_gzip("the stream has no end")

    async def _next_part(self) -> tuple[bytes, bool]:
        """Return the next part of the body, and whether there are more."""
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            if self.spool.is_full:
                LOGGER.warning(
                    "a client left while its lines had no more room: raise stream_spool_bytes for one that reads no "
                    "response before it has sent all",
                    extra={"fields": {"request_id": self._request.scope["state"]["context"].request_id}},
                )
            raise ClientGoneError
        return message.get("body", b""), message.get("more_body", False)

    def _decompress(self, data: bytes) -> tuple[bytes, bytes]:
        """Return some decompressed bytes, and the rest of the data."""
        assert self._gunzip is not None
        try:
            part = self._gunzip.decompress(data, BLOCK_BYTES)
        except zlib.error as error:
            raise not_gzip(str(error)) from None
        if self._gunzip.unused_data:
            raise not_gzip("bytes follow the stream")
        return part, self._gunzip.unconsumed_tail

    def _too_long(self) -> ProblemError:
        detail = (
            f"the line is over {self._max_line_bytes} bytes (max_body_bytes); send its texts in several lines"
        )
        return ProblemError(413, "body-too-large", detail, reason="too_large")
