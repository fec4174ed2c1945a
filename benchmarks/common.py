"""Shared by the benchmarks: the line that names the machine, and timing in turns."""

import datetime
import os
import platform
import time
from collections.abc import Callable, Mapping
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


def least_seconds(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least seconds of each; they take turns, and the first round warms up.

    What else runs on the machine makes a run slower, never faster: so the best round counts.
    """
    return {name: min(taken) for name, taken in seconds_in_turns(runs, rounds).items()}


def seconds_in_turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round; the runs take turns, and the first round, left out, warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds
