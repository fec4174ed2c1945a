"""The engine process's sign of life: a file that it touches every second, and at which the parent looks.

The engine process watches its own batches; what it cannot watch is itself, stopped or held by native code that lets no
other thread run.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE = "engine.beat"
LONGEST_STEP_S = 1.0
"""Of silence between two looks: whoever was stopped along with the other has heard nothing either."""


def beat(folder: Path) -> None:
    """Give the sign; a full disk or a removed folder must not end who gives it."""
    with suppress(OSError):
        file = folder / FILE
        file.touch()
        os.utime(file)


@dataclass(slots=True)
class Pulse:
    """What the parent has seen of it."""

    folder: Path
    silent_s: float = 0.0
    """Since it changed last; 0 before the first: loading takes what it takes."""
    _seen: int | None = None
    _looked: float = 0.0

    def look(self) -> float:
        """Return for how long there has been no sign."""
        now = time.monotonic()
        step, self._looked = min(now - self._looked, LONGEST_STEP_S), now
        found = self._seen
        with suppress(OSError):
            found = (self.folder / FILE).stat().st_mtime_ns
        is_silent = found is not None and found == self._seen
        self.silent_s = self.silent_s + step if is_silent else 0.0
        self._seen = found
        return self.silent_s

    def forget(self) -> None:
        """Begin anew: another process is to give it."""
        with suppress(OSError):
            (self.folder / FILE).unlink(missing_ok=True)
        self.silent_s, self._seen = 0.0, None
