"""Cut a body into its lines, in blocks of any size."""

import re
from collections.abc import Iterator

from service.http.problems import ProblemError

CONTENT = re.compile(rb"[^ \t\r\n]")
"""Matches the first byte that is not white space of JSON."""


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
