"""One baseline in one round: started, checked, measured in closed and open loops, stopped."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from benchmarks.serve.baselines.registry import CoreSplit, Place, ServerBaseline
from benchmarks.serve.load.answers import Check, Expected, check
from benchmarks.serve.load.loops import closed_loop, open_loop
from benchmarks.serve.load.process_tree import watched
from benchmarks.serve.load.running import BaselineError, Running, free_port, last_lines, process, server
from benchmarks.serve.load.wire import ask_all
from benchmarks.serve.load.workloads import Workload

WARM_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Duration and load of the measurement of each baseline."""

    connections: tuple[int, ...]
    closed_s: float
    open_s: float
    shares: tuple[float, ...] = (0.5, 0.8)
    """Arrival rates of the open loops, as shares of the highest closed-loop rate."""
    warm_s: float = 2.0
    start_s: float = 300.0
    """A baseline that does not answer after so long has failed."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop."""

    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    cpu_ms: float
    """CPU time of all the baseline's processes for a request."""
    client_cpu_ms: float
    peak_bytes: int
    others: float
    """Share of the machine's cores that other work took."""


@dataclass(frozen=True, slots=True)
class Open:
    """An open loop; latencies from the moment a request was due."""

    share: float
    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    requests: int
    failures: int
    late_p99_ms: float
    """Delay of the client itself in sending."""
    client_was_late: bool
    connections: int
    cpu_ms: float
    peak_bytes: int
    others: float


@dataclass(slots=True)
class Round:
    """Measurements of a baseline in one round."""

    checked: Check | None = None
    closed: list[Closed] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    failure: str = ""
    """Why it was not measured to the end."""

    @property
    def best_rate(self) -> float:
        """Return the highest closed-loop rate."""
        return max((loop.requests_per_s for loop in self.closed), default=0.0)


@dataclass(frozen=True, slots=True)
class EngineLoop:
    """A loop of the engine alone."""

    name: str
    requests_per_s: float
    p50_ms: float
    """Time of one call of the engine: a text, or a batch."""
    p99_ms: float
    cpu_ms: float
    peak_bytes: int


def measure(
    baseline: ServerBaseline,
    place: Place,
    shape: CoreSplit,
    work: Workload,
    expected: Sequence[Sequence[Expected]],
    plan: LoadPlan,
    log: Path,
) -> Round:
    """Measure a server; what goes wrong is written into the round, so that the others are measured all the same."""
    found, port = Round(), free_port()
    url = f"http://127.0.0.1:{port}"
    requests = baseline.requests(url, work.kind, work.jobs)
    command = baseline.command(place, shape, port)
    try:
        with server(command, port, requests[0][0], log, plan.start_s) as running:
            found.checked = _check(baseline, work, running, requests, expected)
            closed_loop(running.url, requests, min(WARM_CONNECTIONS, max(plan.connections)), plan.warm_s)
            for connections in plan.connections:
                found.closed.append(_closed(running, requests, connections, plan.closed_s))
            for share in plan.shares:
                found.open.append(_open(running, requests, share, share * found.best_rate, plan.open_s))
    except BaselineError as error:
        found.failure = str(error)
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        found.failure = f"{error or type(error).__name__}\n{last_lines(log)}"
    return found


def trial_rate(
    baseline: ServerBaseline,
    place: Place,
    shape: CoreSplit,
    work: Workload,
    connections: int,
    plan: LoadPlan,
    log: Path,
) -> float:
    """Return the closed-loop rate of a shape; 0 if it does not work."""
    brief = LoadPlan((connections,), plan.closed_s, plan.open_s, (), plan.warm_s, plan.start_s)
    return measure(baseline, place, shape, work, (), brief, log).best_rate


def engine_loops(
    baseline: ServerBaseline, place: Place, work: Workload, seconds: float, log: Path, jobs: Path
) -> list[EngineLoop]:
    """Run the engine alone; raises BaselineError if that fails."""
    jobs.write_text(json.dumps(work.jobs), encoding="utf-8")
    command = [
        *baseline.command(place, CoreSplit(1, 1), 0),
        *("--jobs", str(jobs), "--kind", work.kind, "--seconds", str(seconds)),
    ]
    with process(command, log) as started:
        status = started.wait()
    if status:
        raise BaselineError(f"it ended with {status}:\n{last_lines(log)}")
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    return [EngineLoop(**json.loads(line)) for line in lines]


def _check(
    baseline: ServerBaseline,
    work: Workload,
    running: Running,
    requests: Sequence[Sequence[bytes]],
    expected: Sequence[Sequence[Expected]],
) -> Check:
    """Ask all at once, so that those who batch do."""
    asked = requests[: len(expected)]
    answers = iter(ask_all(running.url, [message for request in asked for message in request]))
    given = [baseline.read(work.kind, list(islice(answers, len(request)))) for request in asked]
    return check(list(chain.from_iterable(given)), list(chain.from_iterable(expected)))


def _closed(
    running: Running, requests: Sequence[Sequence[bytes]], connections: int, seconds: float
) -> Closed:
    client = time.process_time()
    with watched(running.pid) as usage:
        load = closed_loop(running.url, requests, connections, seconds)
    count = len(load.latencies_ms)
    return Closed(
        connections,
        load.requests_per_s,
        load.percentile_ms(0.5),
        load.percentile_ms(0.99),
        count,
        1000 * usage.cpu_s / count,
        1000 * (time.process_time() - client) / count,
        usage.peak_bytes,
        usage.others,
    )


def _open(
    running: Running, requests: Sequence[Sequence[bytes]], share: float, rate: float, seconds: float
) -> Open:
    with watched(running.pid, every_s=None) as usage:
        load = open_loop(running.url, requests, rate, seconds)
    count = len(load.latencies_ms)
    return Open(
        share,
        rate,
        load.percentile_ms(0.5),
        load.percentile_ms(0.99),
        load.percentile_ms(0.999),
        count,
        load.failures,
        sorted(load.lateness_ms)[int(0.99 * (count - 1))],
        load.client_was_late,
        load.connections,
        1000 * usage.cpu_s / count,
        usage.peak_bytes,
        usage.others,
    )
