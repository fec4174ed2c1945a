"""Nodes of a Ray cluster on this machine, each with an address of loopback, and Ray Serve on them (Linux).

Ray is in an environment of its own, whose Python is named.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.serve.load.process_tree import kill
from benchmarks.serve.load.running import BaselineError, free_port, last_lines, process

HEAD, WORKER = "127.0.0.2", "127.0.0.3"
"""Ray takes 127.0.0.1 for the machine's outward address."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # A lost node is noticed after two seconds instead of half a minute.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
OBJECTS_BYTES = 100_000_000
"""Shared memory of a node for Ray's objects."""
START_S = 120.0


def with_settings(*command: str, **settings: str) -> list[str]:
    """Return a command with SETTINGS and more in its environment."""
    return ["env", *(f"{name}={value}" for name, value in {**SETTINGS, **settings}.items()), *command]


def program(python: str, name: str) -> str:
    """Return a command of Ray's environment."""
    return str(Path(python).with_name(name))


@contextmanager
def node(python: str, log: Path, cpus: int, *arguments: str) -> Iterator[int]:
    """Run a node; yields the process that all of its processes descend from."""
    command = [program(python, "ray"), "start", "--block", "--disable-usage-stats", "--num-cpus", str(cpus)]
    command += ["--object-store-memory", str(OBJECTS_BYTES), *arguments]
    with process(with_settings(*command), log) as started:
        try:
            wait_for(lambda: "Ray runtime started" in log.read_text(), log)
            yield started.pid
        finally:
            kill(started.pid)


@contextmanager
def head_node(python: str, logs: Path, cpus: int) -> Iterator[tuple[str, int]]:
    """Run the head node of a cluster; yields the cluster's address and the node's process."""
    port = free_port()
    arguments = ["--head", "--port", str(port), "--node-ip-address", HEAD, "--include-dashboard", "false"]
    with node(python, logs / "head.log", cpus, *arguments) as pid:
        yield f"{HEAD}:{port}", pid


@contextmanager
def two_nodes(python: str, logs: Path, head_cpus: int, worker_cpus: int) -> Iterator[tuple[str, int]]:
    """Run a cluster of two nodes; yields its address and the process of the worker."""
    with head_node(python, logs, head_cpus) as (address, _):
        join = ["--address", address, "--node-ip-address", WORKER]
        with node(python, logs / "worker.log", worker_cpus, *join) as worker:
            yield address, worker


@contextmanager
def ray_serve(python: str, logs: Path, address: str, *arguments: str) -> Iterator[str]:
    """Run the example for Ray Serve on a cluster; yields its URL once all replicas are there."""
    port, log = free_port(), logs / "serve.log"
    serve = program(python, "serve")
    proxy = ["--proxy-location", "HeadOnly", "--http-port", str(port)]
    with process(with_settings(serve, "start", *proxy, RAY_ADDRESS=address), logs / "start.log") as start:
        if code := start.wait(START_S):
            raise BaselineError(f"`serve start` ended with {code}:\n{last_lines(logs / 'start.log')}")
    run = [serve, "run", "examples.ray.serve_with_ray:app", *arguments]
    with process(with_settings(*run, RAY_ADDRESS=address), log) as started:
        wait_for(lambda: started.poll() is not None or "is ready" in log.read_text(), log)
        if started.poll() is not None:
            raise BaselineError(f"`serve run` ended with {started.poll()}:\n{last_lines(log)}")
        yield f"http://127.0.0.1:{port}"


def wait_for(happened: Callable[[], bool], log: Path, seconds: float = START_S) -> None:
    """Wait for something; raises BaselineError with the last lines of a log if it does not happen."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise BaselineError(f"it did not happen in {seconds:.0f} s:\n{last_lines(log)}")
        time.sleep(0.05)
