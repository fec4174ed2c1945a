"""The lines of a request's body, which is spooled as it arrives."""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request

from service.http.limits import BODY_SHARE
from service.http.problems import ClientGoneError, ProblemError
from service.http.request_body import BODY_ERROR, GZIP, LAST_PART, content_coding, not_gzip
from service.http.streams.spool import BLOCK_BYTES, Spool, SpoolFile
from service.logs import LOGGER
from service.settings import ServeSettings

MAX_EXPANSION = 100
"""Maximum decompressed bytes for each byte that was received; JSON lines seldom exceed 30."""
FREE_BODIES = 8
"""Bodies of the maximum size that are decompressed whatever was received, since short bodies may well expand 1,000 times."""

CONTENT = re.compile(rb"[^ \t\r\n]")
"""Matches the first byte that is not white space of JSON."""


class BodyLines:
    """Lines of a body, counted from 1. `receive` must run beside their reader."""

    def __init__(self, request: Request, settings: ServeSettings, file: SpoolFile) -> None:
        """Raises the 415 of an unknown Content-Encoding."""
        self._request, self._max_body_bytes = request, settings.max_body_bytes
        self._share = request.scope["state"][BODY_SHARE]
        is_plain = content_coding(request.scope) == "identity"
        self._gunzip = None if is_plain else zlib.decompressobj(wbits=GZIP)
        self._received = self._decompressed = 0
        """Bytes of a compressed body."""
        self.spool, self._splitter = Spool(file), LineSplitter(settings.max_body_bytes)
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
                self._count_held(len(part))
                await self.spool.write(part)
        except ProblemError as error:
            self._fail(error)
        except OSError as error:
            LOGGER.error("a stream's lines cannot be kept in a temporary file: %s", error)
            detail = f"the service has no room for lines that arrive before they are read ({error.strerror})"
            self._fail(ProblemError(507, "no-room", detail))
        self.is_whole = True
        self.spool.end()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientGoneError

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes | ProblemError]]:
        """Yield each line that is not blank with its number; in place of one that is too long its problem.

        What follows the last line end is a line only if the body is whole: half of one would get a false response.
        """
        try:
            while block := await self._read():
                if b"\n" in block:
                    self.last_line = time.monotonic()
                for found in self._splitter.split(block):
                    yield found
                self._count_held()
                await asyncio.sleep(0)  # a block may be blank
        except ProblemError as error:
            self._fail(error)
            self.spool.close()
        if self.error is None and not self.spool.is_closed:
            for found in self._splitter.rest():
                yield found

    def _fail(self, error: ProblemError) -> None:
        """Note the first error, without its traceback: that would keep this object and its bytes in a cycle."""
        self.error = self.error or error.with_traceback(None)

    def _count_held(self, size: int = 0) -> None:
        """Count what is in memory, and `size` bytes that come. Raises the 503 of too much that all bodies hold."""
        self._share.hold(size + self.spool.memory_bytes + self._splitter.held_bytes)

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
            if self._gunzip is None:
                yield data
            else:
                async for part in self._decompress_all(self._gunzip, data):
                    yield part
            if error := self._request.scope["state"].get(BODY_ERROR):
                raise error
        if not more and self._gunzip is not None and not self._gunzip.eof:
            raise not_gzip("the stream has no end")

    async def _decompress_all(self, gunzip: "zlib._Decompress", data: bytes) -> AsyncIterator[bytes]:
        """Yield what received bytes expand to. Raises the 413 of far more than they are."""
        self._received += len(data)
        part = b""
        while (data or len(part) == BLOCK_BYTES) and not self.spool.is_closed:
            part, data = await asyncio.to_thread(_decompress, gunzip, data)
            self._decompressed += len(part)
            if self._decompressed > FREE_BODIES * self._max_body_bytes + MAX_EXPANSION * self._received:
                detail = (
                    f"the gzip stream expands to over {MAX_EXPANSION} times its size and to over {FREE_BODIES} times "
                    f"{self._max_body_bytes} bytes (max_body_bytes); send it as it is, or in several requests"
                )
                raise ProblemError(413, "body-too-large", detail, reason="too_large")
            yield part

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


def _decompress(gunzip: "zlib._Decompress", data: bytes) -> tuple[bytes, bytes]:
    """Return some decompressed bytes, and the rest of the data."""
    try:
        part = gunzip.decompress(data, BLOCK_BYTES)
    except zlib.error as error:
        raise not_gzip(str(error)) from None
    if gunzip.unused_data:
        raise not_gzip("bytes follow the stream")
    return part, gunzip.unconsumed_tail


class LineSplitter:
    """Lines that are not blank, with their numbers, from 1."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds a line, and blank lines in a row together."""
        self._max_bytes, self._number = max_bytes, 1
        self._line, self._is_long = bytearray(), False
        self._yielded_bytes = 0
        """Bytes of the line that was yielded last, until the next one is asked for."""
        self._blank_bytes = 0
        """Bytes of white space since the last line."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the line whose end has not come, and of the one that is in the caller's hands."""
        return len(self._line) + self._yielded_bytes

    def split(self, block: bytes) -> Iterator[tuple[int, bytes | ProblemError]]:
        """Yield the lines that end in a block; in place of one that is too long its problem.

        Raises the 413 of too many blank lines.
        """
        start = self._skip_blank(block, 0)
        while start < len(block):
            end = block.find(b"\n", start)
            self._append(block[start:] if end < 0 else block[start:end])
            if end < 0:
                return
            yield self._finish()
            self._yielded_bytes = 0
            start = self._skip_blank(block, end + 1)

    def rest(self) -> Iterator[tuple[int, bytes | ProblemError]]:
        """Yield the last line, if the body does not end with a line end."""
        if self._line or self._is_long:
            yield self._finish()

    def _skip_blank(self, block: bytes, start: int) -> int:
        """Return where the next line's content begins. One search skips all blank lines of a block."""
        if self._line or self._is_long:
            return start
        content = CONTENT.search(block, start)
        end = content.start() if content else len(block)
        self._number += block.count(b"\n", start, end)
        self._blank_bytes += end - start
        if self._blank_bytes > self._max_bytes:
            detail = (
                f"over {self._max_bytes} bytes of blank lines follow one another (max_body_bytes); send fewer"
            )
            raise ProblemError(413, "body-too-large", detail, reason="too_large")
        if content:
            self._blank_bytes = 0
        return end

    def _append(self, part: bytes) -> None:
        if not self._is_long:
            self._line += part
        if len(self._line) > self._max_bytes:
            self._line, self._is_long = bytearray(), True

    def _finish(self) -> tuple[int, bytes | ProblemError]:
        number, line = self._number, self._too_long() if self._is_long else bytes(self._line)
        self._number, self._yielded_bytes = number + 1, len(self._line)
        self._line, self._is_long = bytearray(), False
        return number, line

    def _too_long(self) -> ProblemError:
        detail = f"the line is over {self._max_bytes} bytes (max_body_bytes); send its texts in several lines"
        return ProblemError(413, "body-too-large", detail, reason="too_large")
