"""A retry storm: how much is answered while far more is asked, and what a refused request costs.

    python -m benchmarks.serve.overload bundles/ner
    python -m benchmarks.serve.overload bundles/ner --against ../before    # another checkout, in turns with this one
    python -m benchmarks.serve.overload bundles/ner --only cost

The storm: clients that send a request of 16 texts of 182 tokens each, give it 5 s, and come back 0.5 s after a 429.
Before and after it a few clients measure what the service can do. The share is what was answered in the storm, over the
mean of both.

The cost: CPU time of the process that speaks HTTP for a 429, by the size of the body, while its queue is full. The engine
process is stopped meanwhile.
"""

import argparse
import asyncio
import itertools
import os
import shlex
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.process_tree import PROC, tree
from benchmarks.serve.load.running import ROOT, Running, free_port, prepare_process, server
from benchmarks.serve.load.storm import Storm, status_of, storm
from benchmarks.serve.load.wire import connect, request_bytes
from benchmarks.serve.report.percentiles import percentile

FEW, TEXTS, WORDS = 3, 16, 180
"""Clients that measure the capacity; texts of a request and words of a text, each a token."""
TIMEOUT = b"\r\nx-timeout-ms: "
SIZES = (16_000, 64_000, 256_000, 1_000_000, 2_000_000)
FILLING, MOST_TOKENS = 8, 16_384
"""Clients that fill the queue, and its bound, for the cost: about six of their requests."""
STOPPED_S = 0.6
"""Seconds for which the engine process is stopped at once: after 3 s of silence requests get 503."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(machine_line())
    print(f"Command: {command_line('serve.overload', arguments)}", flush=True)
    checkouts = [ROOT, *([args.against.resolve()] if args.against else [])]
    if args.only != "cost":
        print(
            "\n| checkout | round | answered/s before | in the storm | after | share | p50 and most, s | statuses |"
            " CPU s, HTTP |\n|---|---|---|---|---|---|---|---|---|"
        )
        with ExitStack() as stack:
            services = [stack.enter_context(service(each, args)) for each in checkouts]
            shares = {each: list[float]() for each in checkouts}
            for number in range(1, args.rounds + 1):
                for checkout, running in zip(checkouts, services, strict=True):
                    shares[checkout].append(storm_row(checkout, number, running, args))
        for checkout, found in shares.items():
            print(
                f"{checkout.name}: share {statistics.median(found):.2f} (median of {len(found)})", flush=True
            )
    if args.only != "storm":
        print("\n| checkout | bytes | status | CPU ms |\n|---|---|---|---|")
        for checkout in checkouts:
            with service(checkout, args, "--max-queue-tokens", str(MOST_TOKENS)) as running:
                asyncio.run(costs(checkout, running, args))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("bundles", type=Path, help="a bundle for ner, or a folder of bundles with one")
    add("--clients", type=int, default=48, help="of the storm")
    add("--back-s", type=float, default=0.5, help="seconds until a refused client comes back")
    add("--timeout-ms", type=int, default=5000, help="time of a request of the storm")
    add("--seconds", type=float, default=12.0, help="of the storm, and of each look at the capacity")
    add("--rounds", type=int, default=3)
    add("--refused", type=int, default=500, help="requests whose cost is measured, for each size")
    add("--against", type=Path, help="another checkout, to compare with")
    add("--only", choices=("storm", "cost"))
    add("--service", default="", help="settings for bert-serve")
    add("--log", type=Path, default=Path("runs/overload.log"), help="the service's log")
    return parser.parse_args(arguments)


def storm_row(checkout: Path, number: int, running: Running, args: argparse.Namespace) -> float:
    """Measure capacity, storm and capacity, print a line, and return the storm's share of the capacity."""
    request = message(running.url)
    urgent = request.replace(b"\r\n", TIMEOUT + str(args.timeout_ms).encode() + b"\r\n", 1)
    frontend = http_process(running.pid)

    def run(sent: bytes, clients: int) -> Storm:
        return asyncio.run(storm(running.url, itertools.repeat(sent), clients, args.seconds, args.back_s))

    before = run(request, FEW)
    used_ms = cpu_ms(frontend)
    worst = run(urgent, args.clients)
    used_ms = cpu_ms(frontend) - used_ms
    after = run(request, FEW)
    share = worst.answered_per_s / statistics.mean([before.answered_per_s, after.answered_per_s])
    rates = [f"{each.answered_per_s:.2f}" for each in (before, worst, after)]
    latencies = sorted(worst.latencies_ms) or [0.0]
    times = f"{percentile(latencies, 0.5) / 1000:.1f}, {latencies[-1] / 1000:.1f}"
    cells = [checkout.name, str(number), *rates, f"{share:.2f}", times, str(dict(worst.statuses))]
    print(f"| {' | '.join(cells)} | {used_ms / 1000:.1f} |", flush=True)
    return share


async def costs(checkout: Path, running: Running, args: argparse.Namespace) -> None:
    """Print what a refused request costs by the size of its body."""
    frontend, engine = http_process(running.pid), engine_process(running.pid)
    filling = asyncio.create_task(
        storm(running.url, itertools.repeat(message(running.url)), FILLING, 1e9, back_s=1.0)
    )
    await asyncio.sleep(2.0)
    for size in SIZES:
        request = message(running.url, size)
        spent, statuses = 0.0, list[str]()
        streams = await connect(running.url)
        while len(statuses) < args.refused:
            os.kill(engine, signal.SIGSTOP)
            try:
                await asyncio.sleep(0.1)  # what the fillers have sent is answered
                before, asked = cpu_ms(frontend), len(statuses)
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOPPED_S):
                        while len(statuses) < args.refused:
                            statuses.append(await status_of(streams, request))
                        await streams[1].drain()
                if len(statuses) == asked:
                    raise RuntimeError(
                        f"{len(request)} bytes: nothing is refused while the engine is stopped"
                    )
                spent += cpu_ms(frontend) - before
            finally:
                os.kill(engine, signal.SIGCONT)
            streams[1].close()
            streams = await connect(running.url)
            await asyncio.sleep(0.3)
        found = "/".join(sorted(set(statuses)))
        print(f"| {checkout.name} | {len(request)} | {found} | {spent / len(statuses):.2f} |", flush=True)
        streams[1].close()
    filling.cancel()


def message(url: str, size: int = 0) -> bytes:
    """Return a request to /ner, or one with a body of about `size` bytes."""
    if not size:
        return request_bytes(url, "/ner", {"text": ["word " * WORDS] * TEXTS})
    return request_bytes(url, "/ner", {"text": ["word " * (size // 5 // TEXTS)] * TEXTS})


def http_process(root: int) -> int:
    """Return the process of a service that speaks HTTP."""
    return next(pid for pid in tree(root) if _kind(pid) == "frontend")


def engine_process(root: int) -> int:
    """Return the engine process of a service."""
    return next(pid for pid in tree(root) if _kind(pid) == "engine")


def _kind(pid: int) -> str:
    return (PROC / str(pid) / "cmdline").read_text().split("\0")[-2]


def cpu_ms(pid: int) -> float:
    """Return the CPU time of a process so far, of all its threads that live."""
    files = (PROC / str(pid) / "task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


@contextmanager
def service(checkout: Path, args: argparse.Namespace, *settings: str) -> Iterator[Running]:
    """Serve the bundles with a checkout's code and one process for HTTP until the block ends."""
    port = free_port()
    command = [
        *("env", f"PYTHONPATH={checkout}", sys.executable, "-P", "-m", "service.cli", "--frontends", "1"),
        *("--bundles", str(args.bundles.resolve()), "--port", str(port)),
        *shlex.split(args.service),
        *settings,
    ]
    ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
    log = args.log.with_stem(f"{args.log.stem}-{port}")
    with server(command, port, ready, log, patience_s=120.0) as running:
        yield running


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
