"""Bytes that have arrived and wait to be read: some in memory, the others in a temporary file.

Most clients send a whole request before they read any of the response. A service that read no further than it has
answered would wait for such a client, and the client for it.
"""

import asyncio
import os
import tempfile
from threading import Lock
from typing import IO

BLOCK_BYTES = 2**16
"""Most bytes that are read at once."""
MEMORY_BYTES = 2**18
"""Bytes that are kept in memory; a file is used for more."""


class Spool:
    """A queue of bytes with one writer and one reader. Its file is a ring, and accessed in threads."""

    def __init__(self, max_file_bytes: int) -> None:
        """Open no file yet. At most `max_file_bytes` wait in it, at least the bytes of one `write`."""
        self._max_file_bytes = max_file_bytes
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._file_lock = Lock()
        """Held while a thread uses the file, which another may close."""
        self._read_at = self._write_at = 0
        """Bounds of the unread bytes; modulo the file's size they are places in it."""
        self._is_writing = self._is_ended = False
        self._written, self._read = asyncio.Event(), asyncio.Event()
        self.is_closed = False
        self.is_full = False
        """True if the last `write` to the file had to wait for room."""

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing waits."""
        return not self._memory and self._read_at == self._write_at

    async def write(self, data: bytes) -> None:
        """Append data, and wait while there is no room. Raises OSError if it cannot be kept."""
        in_file = self._write_at > self._read_at
        if not in_file and len(self._memory) + len(data) <= MEMORY_BYTES:
            self._memory += data
        elif not self.is_closed:
            await self._write_to_file(data)
        self._written.set()

    async def read(self) -> bytes:
        """Wait for data and return some of it; nothing at the end."""
        while self.is_empty and not (self._is_ended or self.is_closed):
            self._written.clear()
            await self._written.wait()
        if self.is_closed:
            return b""
        if self._memory:
            data = bytes(self._memory[:BLOCK_BYTES])
            del self._memory[:BLOCK_BYTES]
        else:
            size = min(BLOCK_BYTES, self._write_at - self._read_at)
            data = await asyncio.to_thread(self._read_file, self._read_at, size)
            self._read_at += size
            if self._read_at == self._write_at and not self._is_writing:
                self._read_at = self._write_at = 0  # so that a file that is emptied often stays small
        self._read.set()
        return data

    def end(self) -> None:
        """Mark the end: the reader gets what waits, and then nothing."""
        self._is_ended = True
        self._written.set()

    def close(self) -> None:
        """Drop what waits, and the file."""
        self.is_closed = True
        self._memory.clear()
        self._written.set()
        self._read.set()
        if self._file is not None:
            asyncio.get_running_loop().run_in_executor(None, self._close_file)

    async def _write_to_file(self, data: bytes) -> None:
        self.is_full = False
        while self._write_at - self._read_at + len(data) > self._max_file_bytes and not self.is_closed:
            self.is_full = True
            self._read.clear()
            await self._read.wait()
        self._is_writing = True
        try:
            await asyncio.to_thread(self._write_file, self._write_at, data)
        finally:
            self._is_writing = False
        self._write_at += len(data)

    def _write_file(self, position: int, data: bytes) -> None:
        with self._file_lock:
            if self.is_closed:
                return
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="bert-serve-stream-", buffering=0)  # noqa: SIM115 (closed by `_close_file`)
            while data:
                start = position % self._max_file_bytes
                written = os.pwrite(self._file.fileno(), data[: self._max_file_bytes - start], start)
                position, data = position + written, data[written:]

    def _read_file(self, position: int, size: int) -> bytes:
        with self._file_lock:
            if self.is_closed or self._file is None:
                return b""
            start = position % self._max_file_bytes
            first = os.pread(self._file.fileno(), min(size, self._max_file_bytes - start), start)
            return first + os.pread(self._file.fileno(), size - len(first), 0)

    def _close_file(self) -> None:
        with self._file_lock:
            if self._file is not None:
                self._file.close()
