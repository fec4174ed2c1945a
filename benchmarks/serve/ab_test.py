"""Two versions of the service side by side: both run, and short bursts go to one and the other in turns.

    python -m benchmarks.serve.ab_test bundles/sentiment --against ../before
    python -m benchmarks.serve.ab_test bundles/sentiment --against . --settings "--batch-tokens 64"
    python -m benchmarks.serve.ab_test bundles/sentiment --against . --bundle-there ../other/sentiment

A service that nobody asks takes no CPU time, so both may be there; what else the machine does falls on both, and the ratio
of neighbouring bursts says what two runs one after the other would not. The texts are those of the other benchmarks.
"""

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.loops import Load, closed_loop
from benchmarks.serve.load.running import ROOT, Running, free_port, prepare_process, server, service_command
from benchmarks.serve.load.texts import made_up_texts
from benchmarks.serve.load.wire import Request, request_bytes
from benchmarks.serve.report.percentiles import Spread

STEP = 37
"""Texts by which each burst begins later, so that all are sent."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(machine_line("onnxruntime"))
    print(f"Command: {command_line('serve.ab_test', arguments)}\n")
    with ExitStack() as stack:
        here = stack.enter_context(_service(ROOT, args.bundle, args.settings, args))
        there = stack.enter_context(_service(args.against, args.bundle_there or args.bundle, "", args))
        print("| connections | requests/s here | there | ratio | p50 ms here | there | ratio |")
        print("|---|---|---|---|---|---|---|")
        for connections in map(int, args.connections.split(",")):
            print(row(connections, in_turns([here, there], connections, args)), flush=True)
    return 0


def in_turns(services: Sequence[Running], connections: int, args: argparse.Namespace) -> list[list[Load]]:
    """Return the bursts of each service, the first one of each left out."""
    requests = [requests_of(running.url) for running in services]
    bursts: list[list[Load]] = [[] for _ in services]
    for number in range(args.bursts + 1):
        order = range(len(services)) if number % 2 else reversed(range(len(services)))
        for index in order:
            first = STEP * number % len(requests[index])
            turned = [*requests[index][first:], *requests[index][:first]]
            load = closed_loop(services[index].url, turned, connections, args.seconds)
            if number:
                bursts[index].append(load)
    return bursts


def row(connections: int, bursts: Sequence[Sequence[Load]]) -> str:
    """Return a line of the table: medians over the bursts, and the median and the middle half of their ratios."""
    rates = [[load.requests_per_s for load in each] for each in bursts]
    medians = [[load.percentile_ms(0.5) for load in each] for each in bursts]
    cells = [str(connections)]
    for values, decimals in ((rates, 0), (medians, 2)):
        ratios = sorted(a / b for a, b in zip(*values, strict=True))
        quarter = len(ratios) // 4
        cells += [f"{statistics.median(each):.{decimals}f}" for each in values]
        cells.append(Spread.of(ratios[quarter : len(ratios) - quarter]).text(2))
    return f"| {' | '.join(cells)} |"


def requests_of(url: str) -> list[Request]:
    """Return what is sent: one text each, the same every time."""
    return [
        [request_bytes(url, "/classify", {"text": text, "truncate": True})] for text in made_up_texts(2000)
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("bundle", type=Path, help="a bundle for classification")
    add("--against", type=Path, required=True, help="another checkout, or this one with --settings")
    add("--bundle-there", type=Path, help="that the other checkout serves; by default the same")
    add("--settings", default="", help="for bert-serve here, not there")
    add("--connections", default="1,8,32", help="comma-separated")
    add("--bursts", type=int, default=24, help="for each number of connections")
    add("--seconds", type=float, default=0.8, help="of each burst")
    add("--start-seconds", type=float, default=120.0, help="a service may take to start")
    add("--log", type=Path, default=Path("runs/in-turns.log"), help="the services' logs")
    return parser.parse_args(arguments)


def _service(
    checkout: Path, bundle: Path, settings: str, args: argparse.Namespace
) -> AbstractContextManager[Running]:
    """Serve a bundle with a checkout's code until the block ends."""
    port = free_port()
    interpreter, *rest = service_command([bundle], port, shlex.split(settings))
    # -P: the module is looked for in that checkout, and not where this one runs.
    command = ["env", f"PYTHONPATH={checkout.resolve()}", interpreter, "-P", *rest]
    ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
    return server(command, port, ready, args.log.with_stem(f"{args.log.stem}-{port}"), args.start_seconds)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
