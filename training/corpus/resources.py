"""Cores, memory and CPU time of this process."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak_memory() -> None:
    """Restart the peak from the present memory on Linux; elsewhere it stays that of the whole run."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # man 5 proc


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
