"""Process metrics (CPU, memory, files), combined over all processes of a service."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LARGEST = frozenset({"process_open_fds"})
SMALLEST = frozenset({"process_max_fds", "process_start_time_seconds"})
"""Metrics that are not summed: each process has its own limit of open files."""


MEMORY = "process_resident_memory_bytes"


class ProcessMetrics(Collector):
    """ProcessCollector's metrics, summed over a process and its children."""

    def __init__(self, parent: int) -> None:
        """`parent` is the process id of the supervisor."""
        self._parent = parent

    def collect(self) -> Iterator[Metric]:
        """Yield the sums; for open files the maximum, for their limits the minimum. Shared memory counts once."""
        samples = dict[str, list[float]]()
        metrics = list(_process_metrics(self._parent))
        for pid in (self._parent, *_children(self._parent)):
            for metric in _process_metrics(pid):
                found = [sample.value for sample in metric.samples]
                if metric.name == MEMORY and (share := _proportional_bytes(pid)) is not None:
                    found = [share]
                samples.setdefault(metric.name, []).extend(found)
        for metric in metrics:
            values = samples[metric.name]
            if metric.name == "process_cpu_seconds":  # a counter must not fall when a child dies
                values.append(_ended_children_s(self._parent))
            combined = max if metric.name in LARGEST else min if metric.name in SMALLEST else sum
            metric.samples = [sample._replace(value=combined(values)) for sample in metric.samples]
            yield metric


def _process_metrics(pid: int) -> Iterable[Metric]:
    return ProcessCollector(pid=lambda: pid, registry=None).collect()


def _proportional_bytes(pid: int) -> float | None:
    """Return a process's memory where a page of n processes counts 1/n (Pss), None if the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _ended_children_s(pid: int) -> float:
    """Return the CPU seconds of a process's ended children, 0 if the system does not tell."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[13]) + int(after_name[14])) / os.sysconf(
            "SC_CLK_TCK"
        )  # cutime, cstime: proc(5)
    except (OSError, ValueError, IndexError):
        return 0.0


def _children(pid: int) -> list[int]:
    """Return the ids of a process's children; none if the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
