"""Shared by the benchmarks: command lines, the line that names the machine, shapes, requests, and timing in turns."""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bert.processor import instructions, processor_name

BERT_SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
"""Name → shape of a BERT."""


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a benchmark, as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def command_line(module: str, arguments: Sequence[str] | None = None) -> str:
    """Return the command of this run."""
    return f"python -m benchmarks.{module} {shlex.join(sys.argv[1:] if arguments is None else arguments)}"


def machine_line(*packages: str) -> str:
    """Return date, processor and its instructions, usable cores, load, and versions of Python and of some packages."""
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f"load average {os.getloadavg()[0]:.1f}"
    processor = f"{processor_name()} ({instructions()})"
    return ", ".join(
        [str(datetime.date.today()), processor, f"{cores} of {os.cpu_count()} cores", load, *versions]
    )


def results_of(url: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Send a request to an endpoint of the service; return its results."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        found: list[dict[str, Any]] = json.load(response)["results"]
    return found


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
