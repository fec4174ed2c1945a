"""A queue of 10,000 texts against one of 100: throughput and memory.

    python -m benchmarks.serving.deep_queue bundles/sentiment --seconds 60

So many connections each send a list of 64 texts, again and again, that as many texts are in the service at a time. Its
limits are set so that nothing is refused (--service). The rounds take turns: 100, 10,000.
"""

import argparse
import math
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serving.closed_loop import scrape
from benchmarks.serving.load.load import closed_loop
from benchmarks.serving.load.process_tree import memory_bytes
from benchmarks.serving.load.running import Running, free_port, prepare_process, server
from benchmarks.serving.load.service_command import service_command
from benchmarks.serving.load.texts import made_up_texts, read_texts
from benchmarks.serving.load.wire import Request, request_bytes
from benchmarks.serving.report.percentiles import Spread

LIMITS = "--request-timeout-ms 3600000 --max-queue-tokens 4000000"
SETTLE_S = 2.0
"""After a run, before the memory is read."""


@dataclass(slots=True)
class Seen:
    """The most that was seen while a block ran."""

    queue_texts: float = 0.0
    memory_bytes: int = 0
    over: threading.Event = field(default_factory=threading.Event)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    texts = read_texts(args.texts) if args.texts else made_up_texts(6400)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    lists = [texts[at : at + args.list] for at in range(0, len(texts) - args.list + 1, args.list)]
    requests: list[Request] = [
        [request_bytes(url, "/classify", {"text": group, "truncate": True})] for group in lists
    ]
    rates: dict[int, list[float]] = {args.shallow: [], args.deep: []}
    command = service_command([args.bundle], port, shlex.split(args.service))
    print(f"lists of {args.list} texts, {args.seconds:g} s each; bert-serve {args.service}\n")
    print("| round | texts in the service | most in its queue | texts/s | MB before | MB peak | MB after |")
    print("|---|---|---|---|---|---|---|")
    with server(command, port, requests[0][0], args.log, args.start_seconds) as running:
        closed_loop(running.url, requests, 2, args.warm_seconds)
        for number in range(1, args.rounds + 1):
            for depth in rates:
                rates[depth].append(measured(running, requests, depth, args.list, args.seconds, number))
    ratios = [deep / shallow for shallow, deep in zip(*rates.values(), strict=True)]
    print(f"\ntexts/s at {args.deep} over those at {args.shallow}: {Spread.of(ratios).text(2)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("bundle", type=Path, help="a bundle for classification")
    add("--deep", type=int, default=10_000, help="texts in the service at a time")
    add("--shallow", type=int, default=100, help="the same, to compare with")
    add("--list", type=int, default=64, help="texts in a request")
    add(
        "--seconds",
        type=float,
        default=60.0,
        help="in which lists are sent; then what is queued is waited for",
    )
    add("--warm-seconds", type=float, default=5.0)
    add("--rounds", type=int, default=2)
    add("--texts", type=Path, help="a file with one text a line; without it they are made up")
    add("--service", default=LIMITS, help="settings for bert-serve")
    add("--start-seconds", type=float, default=300.0, help="the service may take to start")
    add("--log", type=Path, default=Path("runs/deep-queue.log"), help="the service's log")
    return parser.parse_args(arguments)


def measured(
    running: Running, requests: Sequence[Request], depth: int, size: int, seconds: float, number: int
) -> float:
    """Keep so many texts in the service, print the line, return the texts a second."""
    connections = math.ceil(depth / size)
    before = memory_bytes(running.pid)
    with watching(running) as seen:
        load = closed_loop(running.url, requests, connections, seconds)
    time.sleep(SETTLE_S)
    rate = load.requests_per_s * size
    cells = (before, seen.memory_bytes, memory_bytes(running.pid))
    megabytes = " | ".join(f"{value / 2**20:.0f}" for value in cells)
    print(
        f"| {number} | {connections * size} | {seen.queue_texts:.0f} | {rate:.0f} | {megabytes} |",
        flush=True,
    )
    return rate


@contextmanager
def watching(running: Running, every_s: float = 1.0) -> Iterator[Seen]:
    """Look at the service's queue and memory while the block runs."""
    seen = Seen()

    def look() -> None:
        while not seen.over.wait(every_s):
            seen.memory_bytes = max(seen.memory_bytes, memory_bytes(running.pid))
            seen.queue_texts = max(seen.queue_texts, scrape(running.url).get("bert_queue_texts", 0.0))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        seen.over.set()
        watcher.join()


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
