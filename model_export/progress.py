"""Progress of an export: a line a step on stderr, on a terminal a bar below them, and a file if asked."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bert.errors import ConfigError

EVERY_S = 0.25
"""Seconds between two states of the bar and of the file."""
PRIOR_S = 0.5
"""Seconds of work for which this machine is taken to be as fast as the one that the expectations are from."""
BAR = 24  # characters
_CLEAR = "\r\x1b[K"


class Progress:
    """Work done and left, in seconds that it was expected to take. What it took so far says how fast this machine is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock."""
        self._clock, self._last = clock, clock()
        self._done = self._spent = self._total = self._start = self._end = self._shown = 0.0
        self.step = ""

    def expect(self, seconds: float) -> None:
        """Take in how long the rest should take on the machine that the expectations are from."""
        self._total = self._done + seconds

    def begin(self, step: str, seconds: float) -> None:
        """Take in that a step begins, and how long it should take."""
        self._last = self._clock()
        self.step, self._start, self._end = step, self._done, self._done + seconds

    def advance(self, share: float) -> None:
        """Take in which share of the step is done, 1 at its end."""
        now, expected = self._clock(), self._end - self._start
        self._spent += now - self._last if expected else 0
        self._done, self._last = self._start + share * expected, now

    def estimate(self) -> tuple[float, float | None]:
        """Return the share of all work that is done, 0 to 1, and the seconds left; None as long as nothing is expected.

        The share never falls. The seconds may rise.
        """
        if not self._total:
            return 0.0, None
        spent, elapsed = self._spent + PRIOR_S, self._clock() - self._last
        done = min(self._done + elapsed / spent * (self._done + PRIOR_S), max(self._end, self._done))
        slowness = max(spent / (self._done + PRIOR_S), (spent + elapsed) / (done + PRIOR_S))
        total = max(self._total, self._end)
        self._shown = max(self._shown, done / total)
        return self._shown, (total - done) * slowness


current = Progress()
"""Progress of the export that this process makes."""
_lock = threading.Lock()


@contextmanager
def step(what: str, seconds: float = 0.0) -> Iterator[None]:
    """Print what is being done, and how long it took once it is; it should take `seconds`."""
    start, line, took = time.perf_counter(), f"  {what} ... ", "failed"
    current.begin(what, seconds)
    if not sys.stderr.isatty():
        say(line, end="")
        line = ""
    try:
        yield
        took = f"{time.perf_counter() - start:.1f} s"
        current.advance(1.0)
    finally:
        say(line + took)


def say(line: str, end: str = "\n") -> None:
    """Print a line, in the bar's place where there is one. The work goes on where nobody reads it any more."""
    with _lock, suppress(BrokenPipeError):
        print(f"{_CLEAR if sys.stderr.isatty() else ''}{line}", end=end, file=sys.stderr, flush=True)


@contextmanager
def shown(file: Path | None = None) -> Iterator[None]:
    """Keep a bar below the lines, where stderr is a terminal, and the file up to date, until the block ends.

    The file is {"step", "done" (0 to 1), "seconds_left" (null as long as nothing is known)} and goes at the end. Raises
    ConfigError where it cannot be written.
    """
    global current
    current, stop = Progress(), threading.Event()
    if file is not None and file.exists() and not file.is_file():  # a device would be replaced
        raise ConfigError(f"progress file {file} is not a regular file")
    try:
        _show(file)
    except OSError as error:
        raise ConfigError(f"progress file {file} cannot be written: {error.strerror}") from None
    thread = threading.Thread(target=_keep_shown, args=(file, stop), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        say("", end="")
        if file is not None:
            file.unlink(missing_ok=True)
            Path(f"{file}.partial").unlink(missing_ok=True)  # of a full disk


def _keep_shown(file: Path | None, stop: threading.Event) -> None:
    while not stop.wait(EVERY_S):
        with suppress(OSError):  # a full disk ends the export where it writes the bundle
            _show(file)


def _show(file: Path | None) -> None:
    done, left = current.estimate()
    if sys.stderr.isatty() and left is not None:
        bar = f"  [{'#' * int(BAR * done):-<{BAR}}] {done:4.0%} {left:3.0f} s left: {current.step}"
        say(bar[: shutil.get_terminal_size().columns - 1], end="")
    if file is not None:
        state, aside = {"step": current.step, "done": done, "seconds_left": left}, Path(f"{file}.partial")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(file)
