"""Progress of a preparation: a line every few seconds, and a summary at the end."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from training.core.progress import LINE_EVERY_S, Speed, format_seconds
from training.corpus.resources import cpu_seconds, forget_peak_memory, peak_memory_bytes, usable_cores
from training.corpus.shards import SPLITS

MAX_SHOWN = 20


@dataclass
class Totals:
    """Totals of this run and earlier ones."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    empty: int = 0
    broken: int = 0

    def add(self, note: Mapping[str, Any]) -> None:
        """Add a finished block."""
        for entry in (note[split] for split in SPLITS if note[split]):
            self.documents += entry["documents"]
            self.sentences += entry["sentences"]
            self.tokens += entry["tokens"]
        self.empty += note["empty"]
        self.broken += note["broken"]


@dataclass
class PrepareProgress:
    """Collects the results of the workers. Time and memory count from `begin` on."""

    total_bytes: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Start the clock."""
        self.found = Totals()
        self.earlier_tokens = 0
        self.finished = 0
        self._peaks: dict[int, int] = {}
        self._vocabulary: list[str] = []
        self._start(0)

    def _start(self, bytes_read: int) -> None:
        self._began = self._next_line = self.clock()
        self._cpu_before_s, self._bytes_before = cpu_seconds(), bytes_read
        self._speed = Speed(self.total_bytes - bytes_read, 0, self.clock)

    @contextmanager
    def vocabulary(self) -> Iterator[None]:
        """Measure the training of the vocabulary, which the summary shows apart."""
        began = self.clock()
        yield
        mib, taken = peak_memory_bytes() / 2**20, format_seconds(self.clock() - began)
        self._vocabulary = [f"vocabulary trained in {taken} with at most {mib:,.0f} MiB"]

    def begin(self, bytes_read: int = 0) -> None:
        """Begin to make tokens, after `bytes_read` of earlier runs."""
        forget_peak_memory()
        self._start(bytes_read)

    def earlier(self, note: Mapping[str, Any]) -> None:
        """Count a block of an earlier run."""
        self.found.add(note)
        self.earlier_tokens = self.found.tokens

    def block(self, note: Mapping[str, Any], process: int, peak_bytes: int, bytes_read: int) -> None:
        """Count a block of this run, and print a line if one is due."""
        for problem in note["problems"][: max(0, MAX_SHOWN - self.found.broken)]:
            self.say(f"skipped {problem}")
        self.found.add(note)
        self.finished += 1
        self._peaks[process] = peak_bytes
        self._speed.update(bytes_read - self._bytes_before, self._made)
        if self.clock() >= self._next_line:
            self._next_line = self.clock() + LINE_EVERY_S
            self.say(self._line(bytes_read))

    def say(self, message: str) -> None:
        """Print a line at once."""
        print(message, file=self.stream, flush=True)

    def summary(self) -> str:
        """Return the summary, once the worker processes have ended."""
        found, seconds = self.found, self.clock() - self._began
        cores = usable_cores()
        made = self._made
        cpu_s = cpu_seconds() - self._cpu_before_s
        lines = [
            *self._vocabulary,
            f"{found.documents:,} documents, {found.sentences:,} sentences, {found.tokens:,} tokens",
            f"{made:,} tokens made in {format_seconds(seconds)}: {made / max(seconds, 1e-9):,.0f} tokens/s, "
            f"{cpu_s / max(seconds, 1e-9) / cores:.0%} of {cores} cores",
            f"peak memory {self.peak_bytes / 2**20:,.0f} MiB in {1 + len(self._peaks)} processes",
        ]
        if found.empty or found.broken:
            lines.append(
                f"left out: {found.empty:,} documents without text, {found.broken:,} that cannot be read"
            )
        return "\n".join(lines)

    @property
    def _made(self) -> int:
        """Tokens made by this run."""
        return self.found.tokens - self.earlier_tokens

    @property
    def peak_bytes(self) -> int:
        """Sum of the peaks of the main process and all workers."""
        return peak_memory_bytes() + sum(self._peaks.values())

    def _line(self, bytes_read: int) -> str:
        parts = [f"{self.found.documents:,} documents", f"{self.found.tokens:,} tokens"]
        parts.append(f"{self._speed.tokens_per_second:,.0f} tokens/s")
        left = self._speed.seconds_left
        if self.total_bytes:
            parts.append(f"{min(1.0, bytes_read / self.total_bytes):.0%} read")
            parts += [] if left is None else [f"{format_seconds(max(0.0, left))} left"]
        return "  ".join(parts)
