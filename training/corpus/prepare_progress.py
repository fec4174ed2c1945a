"""Progress of a preparation: a line every few seconds, and a summary at the end."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from training.corpus.shards import SPLITS
from training.engine.progress import LINE_EVERY_S, format_seconds

MAX_SHOWN = 20
MANY_UNKNOWN = 0.05
"""Share of unknown tokens from which on the summary warns; BERT's vocabularies leave far less in their languages."""


@dataclass
class PrepareProgress:
    """Counter of finished blocks. Time and cores count from `begin` on."""

    total_bytes: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    found: Counter[str] = field(default_factory=Counter)
    """Documents, sentences, tokens and unknown tokens, empty and broken documents, of this run and earlier ones."""
    made: int = 0
    """Tokens made by this run."""

    def __post_init__(self) -> None:
        """Start the clock."""
        self._vocabulary: list[str] = []
        self.begin()

    @contextmanager
    def vocabulary(self) -> Iterator[None]:
        """Time the training of the vocabulary, which the summary shows apart."""
        began = self.clock()
        yield
        self._vocabulary = [f"vocabulary trained in {format_seconds(self.clock() - began)}"]

    def begin(self, bytes_read: int = 0) -> None:
        """Begin to make tokens, after `bytes_read` of earlier runs."""
        self._began = self._next_line = self.clock()
        self._cpu_before_s, self._bytes_before = cpu_seconds(), bytes_read

    def count(self, note: Mapping[str, Any]) -> None:
        """Count a finished block, of this run or an earlier one."""
        for entry in (note[split] for split in SPLITS if note[split]):
            self.found.update({count: entry[count] for count in ("documents", "sentences", "tokens")})
        self.found.update({count: note[count] for count in ("empty", "broken", "unknown")})

    def block(self, note: Mapping[str, Any], bytes_read: int) -> None:
        """Count a block of this run, and print a line if one is due."""
        for problem in note["problems"][: max(0, MAX_SHOWN - self.found["broken"])]:
            self.say(f"skipped {problem}")
        before = self.found["tokens"]
        self.count(note)
        self.made += self.found["tokens"] - before
        if self.clock() >= self._next_line:
            self._next_line = self.clock() + LINE_EVERY_S
            self.say(self._line(bytes_read))

    def say(self, message: str) -> None:
        """Print a line at once."""
        print(message, file=self.stream, flush=True)

    def summary(self) -> str:
        """Return the summary, once the worker processes have ended."""
        found, seconds = self.found, max(self.clock() - self._began, 1e-9)
        cores = usable_cores()
        used = (cpu_seconds() - self._cpu_before_s) / seconds / cores
        lines = [
            *self._vocabulary,
            f"{found['documents']:,} documents, {found['sentences']:,} sentences, {found['tokens']:,} tokens",
            f"{self.made:,} tokens made in {format_seconds(seconds)}: {self.made / seconds:,.0f} tokens/s, "
            f"{used:.0%} of {cores} cores",
        ]
        if found["empty"] or found["broken"]:
            lines.append(
                f"left out: {found['empty']:,} documents without text, {found['broken']:,} that cannot be read"
            )
        if found["unknown"] > MANY_UNKNOWN * found["tokens"]:
            lines.append(
                f"warning: {found['unknown'] / found['tokens']:.0%} of the tokens are unknown ([UNK]): words over 100 "
                "characters, as in scripts without spaces, or with characters outside the vocabulary. The bytes of "
                "model_type modernbert or roberta can write every text; deberta-v2 and albert need no spaces either"
            )
        return "\n".join(lines)

    def _line(self, bytes_read: int) -> str:
        seconds, read = max(self.clock() - self._began, 1e-9), bytes_read - self._bytes_before
        parts = [f"{self.found['documents']:,} documents", f"{self.found['tokens']:,} tokens"]
        parts.append(f"{self.made / seconds:,.0f} tokens/s")
        if self.total_bytes and read:
            left = seconds / read * max(0, self.total_bytes - bytes_read)
            parts += [f"{min(1.0, bytes_read / self.total_bytes):.0%} read", f"{format_seconds(left)} left"]
        return "  ".join(parts)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
