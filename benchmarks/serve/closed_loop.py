"""Requests per second and latency of the service, against the bare engine on the same texts, in one run.

    python -m benchmarks.serve.closed_loop bundles/sentiment --connections 1,8,32,64 --seconds 10
    python -m benchmarks.serve.closed_loop random:bert-base --precision fp16 --texts-a-request 64

Prints a table in Markdown with the machine, the date and the command.
"""

import argparse
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.baselines.encoder_shapes import SHAPES, export_random
from benchmarks.serve.engine_loop import measure
from benchmarks.serve.load.loops import Load, closed_loop
from benchmarks.serve.load.texts import made_up_texts, read_texts
from benchmarks.serve.load.wire import request_bytes
from service.system import usable_cores

RANDOM = "random:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "bundle",
        help=f"a bundle for classification, or {RANDOM}SHAPE for random weights: {', '.join(SHAPES)}",
    )
    parser.add_argument("--precision", default="fp32", help="of the export of random weights")
    parser.add_argument("--texts-a-request", type=int, default=1)
    parser.add_argument(
        "--floor", action=argparse.BooleanOptionalAction, default=True, help="run the loops around the engine"
    )
    parser.add_argument("--connections", default="1,8,32,64", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--texts", type=Path, help="a file with one text a line; without it they are made up")
    parser.add_argument(
        "--service", default="", help='more settings for bert-serve, like "--batch-tokens 256"'
    )
    args = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        random, is_random = args.bundle.removeprefix(RANDOM), args.bundle.startswith(RANDOM)
        bundle = export_random(random, Path(folder), args.precision) if is_random else Path(args.bundle)
        run(args, arguments, bundle)
    return 0


def run(args: argparse.Namespace, arguments: Sequence[str] | None, bundle: Path) -> None:
    """Measure the engine, then the service; print the table."""
    texts = read_texts(args.texts) if args.texts else made_up_texts(2000)
    print(header(arguments, bundle, len(texts), "made up" if not args.texts else args.texts.name))
    floor = measure(bundle, texts, usable_cores(), args.seconds) if args.floor else {}
    for name, rate in floor.items():
        print(f"engine alone, {name}: {rate:.0f} texts/s", flush=True)
    size = args.texts_a_request
    sent: list[str] | list[list[str]] = texts
    if size > 1:
        sent = [texts[at : at + size] for at in range(0, len(texts) - size + 1, size)]
    with running_service(bundle, args.service.split()) as url:
        requests = [(request_bytes(url, "/classify", {"text": text, "truncate": True}),) for text in sent]
        closed_loop(url, requests, 8, 1.0)
        print(table_head())
        for connections in map(int, args.connections.split(",")):
            before = scrape(url)
            load = closed_loop(url, requests, connections, args.seconds)
            print(table_row(load, size, before, scrape(url), max(floor.values(), default=0.0)), flush=True)


@contextmanager
def running_service(bundle: Path, settings: Sequence[str]) -> Iterator[str]:
    """Run bert-serve on a free port until the block ends; gives its address."""
    command = [sys.executable, "-m", "service.cli", "--port", "0", "--bundles", str(bundle), *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"Ready at (http://\S+)", line):
                yield found[1]
                return
        raise SystemExit("the service did not start; its own message is above")
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def scrape(url: str) -> dict[str, float]:
    """Return the service's metrics, each summed over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found = defaultdict[str, float](float)
    for sample, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#"):
        found[sample.partition("{")[0]] += float(value)
    return found


def header(arguments: Sequence[str] | None, bundle: Path, texts: int, origin: str) -> str:
    """Return machine, date and command."""
    return (
        f"{machine_line()}\nCommand: {command_line('serve.closed_loop', arguments)}\n"
        f"Bundle {bundle.name}, {texts} texts ({origin})"
    )


def table_head() -> str:
    """Return the first lines of the table."""
    return (
        "\n| connections | requests/s | texts/s | to the fastest engine loop | p50 ms | p99 ms | CPU ms/request "
        "| tokens/batch | padding | RSS MB |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )


def table_row(load: Load, size: int, before: dict[str, float], after: dict[str, float], floor: float) -> str:
    """Return a line of the table, of requests of `size` texts; batches and CPU are what the service's metrics say."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    batches = max(1.0, grown("bert_batch_tokens_count"))
    cells = (
        f"{load.connections}",
        f"{load.requests_per_s:.0f}",
        f"{size * load.requests_per_s:.0f}",
        f"{size * load.requests_per_s / floor:.2f}" if floor else "",
        f"{load.percentile_ms(0.5):.1f}",
        f"{load.percentile_ms(0.99):.1f}",
        f"{1000 * grown('process_cpu_seconds_total') / len(load.latencies_ms):.2f}",
        f"{grown('bert_batch_tokens_sum') / batches:.0f}",
        f"{grown('bert_batch_padding_ratio_sum') / batches:.2f}",
        f"{after['process_resident_memory_bytes'] / 2**20:.0f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
