"""Requests per second, latency and CPU of Ray Serve by replicas, beside one bert-serve on the same texts (Linux).

    python -m benchmarks.serve.ray_serve bundles/sentiment --ray-python .venv-ray/bin/python --connections 1,32

Rounds take turns. Prints a table in Markdown with the machine, the date and the command: medians of the rounds, and the
least latency of all.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.loops import closed_loop
from benchmarks.serve.load.process_tree import cpu_seconds, watched
from benchmarks.serve.load.ray_nodes import head_node, ray_serve
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from benchmarks.serve.load.texts import made_up_texts
from benchmarks.serve.load.wire import Request, request_bytes

WARM_UP_S, IDLE_S = 2.0, 5.0
Row = tuple[float, ...]
"""Requests a second; the least latency, p50 and p99 in ms; CPU ms of a request; peak memory in MB."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="a bundle for classification")
    parser.add_argument(
        "--ray-python", required=True, help="Python of an environment with requirements/ray.txt"
    )
    parser.add_argument(
        "--replicas", default="1,2", help="comma-separated; bert-serve gets as many engine slots"
    )
    parser.add_argument("--connections", default="1,32", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    prepare_process()
    print(f"{machine_line()}\nCommand: {command_line('serve.ray_serve', arguments)}\n")
    rows, idle = defaultdict[tuple[str, int], list[Row]](list), defaultdict[str, list[float]](list)
    for _ in range(args.rounds):
        for count in map(int, args.replicas.split(",")):
            for name, running in (("bert-serve", bert_serve), ("Ray Serve", ray)):
                with TemporaryDirectory() as logs, running(args, Path(logs), count) as (url, pid):
                    idle[f"{name}, {count}"].append(idle_share(pid))
                    for connections in map(int, args.connections.split(",")):
                        measured = row(args, url, pid, connections)
                        rows[f"{name}, {count}", connections].append(measured)
                        shown = ", ".join(f"{number:.2f}" for number in measured)
                        print(f"{name}, {count}, {connections} connections: {shown}", flush=True)
    print_table(rows, idle)
    return 0


@contextmanager
def bert_serve(args: argparse.Namespace, logs: Path, slots: int) -> Iterator[tuple[str, int]]:
    """Run the service with so many engine slots; yields its URL and process."""
    settings = ["--engine-slots", str(slots), "--engine-threads-per-slot", "1"]
    port = free_port()
    first = requests(args.bundle, f"http://127.0.0.1:{port}")[0][0]
    with server(
        service_command([args.bundle], port, settings), port, first, logs / "serve.log", 60
    ) as running:
        yield running.url, running.pid


@contextmanager
def ray(args: argparse.Namespace, logs: Path, replicas: int) -> Iterator[tuple[str, int]]:
    """Run the example on a node with so many replicas of one slot; yields its URL and the node's process."""
    scale = [f"min_replicas={replicas}", f"max_replicas={replicas}"]
    with (
        head_node(args.ray_python, logs, replicas) as (address, pid),
        ray_serve(args.ray_python, logs, address, f"bundles={args.bundle.resolve()}", *scale) as url,
    ):
        yield url, pid


def requests(bundle: Path, url: str) -> list[Request]:
    """Return the requests: one text each."""
    return [
        (request_bytes(url, "/classify", {"text": text, "truncate": True}),) for text in made_up_texts(2000)
    ]


def idle_share(pid: int) -> float:
    """Return the share of a core that the processes take without a request."""
    time.sleep(WARM_UP_S)
    before = cpu_seconds(pid)
    time.sleep(IDLE_S)
    return (cpu_seconds(pid) - before) / IDLE_S


def row(args: argparse.Namespace, url: str, pid: int, connections: int) -> Row:
    """Measure one load."""
    sent = requests(args.bundle, url)
    closed_loop(url, sent, connections, WARM_UP_S)
    with watched(pid) as usage:
        load = closed_loop(url, sent, connections, args.seconds)
    cpu_ms = 1000 * usage.cpu_s / len(load.latencies_ms)
    latencies = load.latencies_ms[0], load.percentile_ms(0.5), load.percentile_ms(0.99)
    return load.requests_per_s, *latencies, cpu_ms, usage.peak_bytes / 2**20


def print_table(rows: dict[tuple[str, int], list[Row]], idle: dict[str, list[float]]) -> None:
    """Print the medians of all rounds."""
    columns = "requests/s | least ms | p50 ms | p99 ms | CPU ms/request | MB | idle, of a core"
    print(f"\n| server, engine slots | connections | {columns} |\n|{'---|' * 9}")
    for (name, connections), measured in rows.items():
        rate, _, p50, p99, cpu_ms, memory = map(median, zip(*measured, strict=True))
        least = min(each[1] for each in measured)
        latencies = f"{least:.1f} | {p50:.1f} | {p99:.1f}"
        cells = f"{rate:.0f} | {latencies} | {cpu_ms:.1f} | {memory:.0f} | {median(idle[name]):.1%}"
        print(f"| {name} | {connections} | {cells} |")


if __name__ == "__main__":
    sys.exit(main())
