"""The first line of a benchmark: when and on what machine it ran."""

import datetime
import os
import platform
from importlib.metadata import version

from bert.processor import instructions, processor_name


def machine_line(*packages: str) -> str:
    """Return date, processor and its instructions, usable cores, load, and versions of Python and of some packages."""
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f"load average {os.getloadavg()[0]:.1f}"
    processor = f"{processor_name()} ({instructions()})"
    return ", ".join(
        [str(datetime.date.today()), processor, f"{cores} of {os.cpu_count()} cores", load, *versions]
    )
