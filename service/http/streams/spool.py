"""Bytes that have arrived and wait to be read: the newest in memory, the others in a temporary file.

Most clients send a whole request before they read any of the response. A service that read no further than it has
answered would wait for such a client, and the client for it.
"""

import asyncio
import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import IO, TypeVar

Result = TypeVar("Result")
BLOCK_BYTES = 2**16
"""Most bytes that are read at once, and the bytes of a block of the file."""
MEMORY_BYTES = 2**18
"""Bytes that are kept in memory; a file is used for more."""
RESERVE_BYTES = 2**26
"""Bytes that the file leaves free in its file system, at most a quarter of it. The metrics of several processes are
mapped into memory from files there, and a process that finds no room for such a page is killed."""


class SpoolFile:
    """A temporary file, divided into blocks, for the spools of all streams of a process."""

    def __init__(self, max_bytes: int) -> None:
        """Open no file yet; it grows to at most `max_bytes`."""
        self._max_blocks = max_bytes // BLOCK_BYTES
        self._file: IO[bytes] | None = None
        self._free, self._file_blocks = list[int](), 0
        """A heap of the file's free blocks, so that the first are used first; and the number of all its blocks."""
        self.changed = asyncio.Event()
        """Set when a spool that waits for room should look again."""

    def take(self, held: int) -> int | None:
        """Return a block for a spool that holds `held` others, None if it must wait. Raises OSError without disk space.

        A spool holds at most as many blocks as are free, so that other streams find some.
        """
        if held >= self._max_blocks - self._file_blocks + len(self._free):
            return None
        if self._free:
            return heappop(self._free)
        disk = shutil.disk_usage(tempfile.gettempdir())
        if disk.total and disk.free < min(RESERVE_BYTES, disk.total // 4):  # 0: a tmpfs without a limit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="bert-serve-stream-", buffering=0)  # noqa: SIM115 (closed by `give_back`)
        self._file_blocks += 1
        return self._file_blocks - 1

    def give_back(self, block: int) -> None:
        """Free a block, and close the file when none is in use."""
        heappush(self._free, block)
        if len(self._free) == self._file_blocks and self._file is not None:
            asyncio.get_running_loop().run_in_executor(None, self._file.close)
            self._file, self._file_blocks = None, 0
            self._free.clear()
        self.changed.set()

    async def write(self, block: int, data: bytes) -> None:
        """Fill a block. Frees it and raises OSError if that fails."""
        try:
            written = await self._run(block, lambda file: os.pwrite(file, data, block * BLOCK_BYTES))
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.give_back(block)
            raise

    async def read(self, block: int) -> bytes:
        """Return a block's bytes and free it."""
        data = await self._run(block, lambda file: os.pread(file, BLOCK_BYTES, block * BLOCK_BYTES))
        self.give_back(block)
        return data

    async def _run(self, block: int, call: Callable[[int], Result]) -> Result:
        """Use a block in a thread. When cancelled, free it only after the thread has ended: another may take it."""
        assert self._file is not None
        running = asyncio.get_running_loop().run_in_executor(None, call, self._file.fileno())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda _: self.give_back(block))
            raise


class Spool:
    """A queue of bytes with one writer and one reader."""

    def __init__(self, file: SpoolFile) -> None:
        """Start empty; what exceeds MEMORY_BYTES goes to the file."""
        self._file = file
        self._blocks = deque[int]()
        """Blocks of the file that wait; what is in memory is newer."""
        self._memory = bytearray()
        self._is_moving = self._is_ended = False
        self._written = asyncio.Event()
        self.is_closed = False
        self.is_full = False
        """True if the last `write` to the file had to wait for room."""

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that are in memory."""
        return len(self._memory)

    async def write(self, data: bytes) -> None:
        """Append data, and wait while there is no room. Raises OSError if it cannot be kept."""
        if self.is_closed:
            return
        self._memory += data
        self._written.set()
        self.is_full = False
        while len(self._memory) > max(MEMORY_BYTES, BLOCK_BYTES) and not self.is_closed:
            if (block := self._file.take(len(self._blocks))) is not None:
                await self._move_to(block)
            else:
                self.is_full = True
                self._file.changed.clear()
                await self._file.changed.wait()

    async def read(self) -> bytes:
        """Wait for data and return some of it; nothing at the end."""
        while not (self._blocks or self.is_closed):
            if not self._is_moving and (self._memory or self._is_ended):
                break
            self._written.clear()
            await self._written.wait()
        if self._blocks:
            return await self._file.read(self._blocks.popleft())
        data = bytes(self._memory[:BLOCK_BYTES])
        del self._memory[:BLOCK_BYTES]
        self._file.changed.set()
        return data

    def end(self) -> None:
        """Mark the end: the reader gets what waits, and then nothing."""
        self._is_ended = True
        self._written.set()

    def close(self) -> None:
        """Drop what waits."""
        self.is_closed = True
        self._memory.clear()
        while self._blocks:
            self._file.give_back(self._blocks.popleft())
        self._written.set()
        self._file.changed.set()

    async def _move_to(self, block: int) -> None:
        """Move the oldest bytes in memory to a block."""
        data = bytes(self._memory[:BLOCK_BYTES])
        self._is_moving = True
        try:
            await self._file.write(block, data)
        finally:
            self._is_moving = False
            self._written.set()
        if self.is_closed:
            self._file.give_back(block)
        else:
            del self._memory[:BLOCK_BYTES]
            self._blocks.append(block)
