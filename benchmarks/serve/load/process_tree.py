"""CPU time and memory of a process and all that it started, from /proc (Linux)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    ended: bool
    """Only its entry is left, until it is waited for."""
    parent: int
    session: int
    cpu_s: float
    """User and system, its own and that of children that ended and were waited for."""


@dataclass(slots=True)
class ResourceUsage:
    """Resources that a process tree used in a stretch of time."""

    cpu_s: float = 0.0
    peak_bytes: int = 0
    """Most memory at any sample: PSS, which counts pages that processes share once; RSS where that is not told."""
    others: float = 0.0
    """Share of the machine's cores that went to neither the tree nor this process, nor stood idle."""


def parse_stat(text: str) -> Stat:
    """Read a line of /proc/PID/stat; the name in it may hold spaces and brackets. Fields: proc(5)."""
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return Stat(
        ended=fields[0] in "ZX", parent=int(fields[1]), session=int(fields[3]), cpu_s=ticks / TICKS_PER_S
    )


def tree(root: int, proc: Path = PROC) -> dict[int, Stat]:
    """Return the process, its descendants, and whoever is in the session that it leads: an orphan stays in that."""
    stats = {int(folder.name): stat for folder in proc.glob("[0-9]*") if (stat := _stat(folder)) is not None}
    found = {pid for pid, stat in stats.items() if pid == root or stat.session == root}
    while more := {pid for pid, stat in stats.items() if stat.parent in found} - found:
        found |= more
    return {pid: stats[pid] for pid in sorted(found)}


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds that the tree has used so far. An orphan that ended is not counted."""
    return sum(stat.cpu_s for stat in tree(root).values())


def memory_bytes(root: int) -> int:
    """Return the memory of the tree now."""
    return sum(_memory(PROC / str(pid)) for pid in tree(root))


def kill(root: int, patience_s: float = 10.0) -> None:
    """End whatever of a tree still runs, and wait until it is gone."""
    until = time.monotonic() + patience_s
    while living := [pid for pid, stat in tree(root).items() if not stat.ended]:
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise RuntimeError(f"these processes do not end: {living}")
        time.sleep(0.02)


def parse_busy(text: str) -> float:
    """Return the CPU seconds that all cores have not stood idle, from /proc/stat; what a hypervisor took is among them."""
    ticks = [int(field) for field in text.splitlines()[0].split()[1:9]]  # user to steal: proc(5)
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / TICKS_PER_S


@contextmanager
def watched(root: int, every_s: float | None = 1.0) -> Iterator[ResourceUsage]:
    """Measure a tree while the block runs; the Usage is filled when it ends.

    Memory is sampled so often; with None only once, at the end, because reading it makes a process wait for some
    milliseconds and would be seen in the slowest latencies.
    """
    usage, over = ResourceUsage(), threading.Event()

    def sample() -> None:
        while every_s is not None and not over.wait(every_s):
            usage.peak_bytes = max(usage.peak_bytes, memory_bytes(root))

    sampler = threading.Thread(target=sample, daemon=True)
    before, start, busy, own = cpu_seconds(root), time.monotonic(), _busy_seconds(), time.process_time()
    sampler.start()
    try:
        yield usage
    finally:
        usage.cpu_s = cpu_seconds(root) - before
        known = usage.cpu_s + time.process_time() - own
        cores_s = (os.cpu_count() or 1) * (time.monotonic() - start)
        usage.others = max(0.0, _busy_seconds() - busy - known) / cores_s
        over.set()
        sampler.join()
        usage.peak_bytes = max(usage.peak_bytes, memory_bytes(root))


def _busy_seconds() -> float:
    return parse_busy((PROC / "stat").read_text())


def _stat(folder: Path) -> Stat | None:
    try:
        return parse_stat((folder / "stat").read_text())
    except OSError:  # it ended meanwhile
        return None


def _memory(folder: Path) -> int:
    for file, name in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = (folder / file).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    return 0
