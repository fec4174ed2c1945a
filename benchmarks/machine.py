"""The first line of a benchmark: when and on what machine it ran."""

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine_line(*packages: str) -> str:
    """Return date, processor, usable cores, load, and versions of Python and of some packages."""
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f"load average {os.getloadavg()[0]:.1f}"
    return ", ".join(
        [str(datetime.date.today()), _processor(), f"{cores} of {os.cpu_count()} cores", load, *versions]
    )


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
