"""Progress for people, on standard error: a line that changes on a terminal, else a line now and then."""

import sys
import time
from typing import TextIO

EVERY_S, EVERY_S_ON_TERMINAL = 5.0, 0.5


class Report:
    """Messages for people: how many rows are done, how fast, and how long the rest will take."""

    def __init__(self, *, is_quiet: bool, stream: TextIO | None = None) -> None:
        """Start the clock."""
        self._stream, self._is_quiet = stream or sys.stderr, is_quiet
        self._is_terminal = self._stream.isatty()
        self._began = self._said = time.monotonic()
        self.rows_before = 0
        self._share_before = 0.0

    def begin(self, rows: int, share: float | None) -> None:
        """Start to count: so many rows, or this share of the input, were done by an earlier run."""
        self._began = time.monotonic()
        self.rows_before, self._share_before = rows, share or 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds since the first row of this run."""
        return time.monotonic() - self._began

    def progress(self, rows: int, bad: int, share: float | None) -> None:
        """Print how far the run is, if the last such line is long enough ago."""
        now = time.monotonic()
        if self._is_quiet or now - self._said < (EVERY_S_ON_TERMINAL if self._is_terminal else EVERY_S):
            return
        self._said = now
        seconds, done = max(now - self._began, 1e-9), (share or 0.0) - self._share_before
        line = f"{rows:,} rows, {(rows - self.rows_before) / seconds:,.0f} rows/s"
        if share is not None and done > 0:
            line += f", {100 * share:.0f}%, {duration(seconds * (1 - share) / done)} left"
        line += f", {bad:,} bad" if bad else ""
        self._print(line, end="" if self._is_terminal else "\n")

    def say(self, line: str, *, always: bool = False) -> None:
        """Print a line; with `is_quiet` only if `always`."""
        if always or not self._is_quiet:
            self._print(line)

    def _print(self, line: str, end: str = "\n") -> None:
        start = "\r\x1b[K" if self._is_terminal else ""
        print(f"{start}{line}", end=end, file=self._stream, flush=True)


def duration(seconds: float) -> str:
    """Return seconds for people: 48 s, 3:05 min, 2:10 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes}:{whole % 60:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
