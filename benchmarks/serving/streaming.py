"""One request of many lines beside the same texts at 32 connections.

    python -m benchmarks.serving.streaming bundles/sentiment --texts-a-round 5000 --all-texts 100000

The rounds take turns: the lines in one request, then as long at 32 connections. Single requests are sent beside both, at a
constant low rate, by a process of their own; their CPU time counts. At the end one request of `--all-texts` is sent whole
before any of its response is read, as most clients do. Prints texts a second, CPU time of the service, latencies of the
single requests, and memory of the process that speaks HTTP.
"""

import argparse
import itertools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.common.machine import machine_line
from benchmarks.serving.load.load import closed_loop
from benchmarks.serving.load.process_tree import cpu_seconds, tree
from benchmarks.serving.load.running import ROOT, Running, free_port, prepare_process, server
from benchmarks.serving.load.service_command import service_command
from benchmarks.serving.load.texts import SENTENCES, made_up_texts, read_texts
from benchmarks.serving.load.wire import Request, request_bytes
from benchmarks.serving.open_loop import OpenLoad, open_loop
from benchmarks.serving.report.percentiles import Spread

CONNECTIONS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    prepare_process()
    texts = read_texts(args.texts) if args.texts else made_up_texts(20_000, mixture=SENTENCES)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    requests: list[Request] = [
        [request_bytes(url, "/classify", {"text": text, "truncate": True})] for text in texts
    ]
    settings = [*shlex.split(args.service), "--frontends", "1"]
    command = service_command([args.bundle], port, settings)
    if args.instant:
        command[1:3] = ["-P", str(ROOT / "benchmarks/serving/load/instant_service.py")]
    print(machine_line("onnxruntime"))
    print(f"Command: python -m benchmarks.serving.streaming {' '.join(arguments or sys.argv[1:])}\n")
    with (
        server(command, port, requests[0][0], args.log, args.start_seconds) as running,
        ProcessPoolExecutor(1, get_context("spawn")) as other,
    ):
        closed_loop(url, requests, CONNECTIONS, 3.0)
        ratios = rounds(args, running, texts, requests, other)
        print(f"\ntexts a second, stream over {CONNECTIONS} connections: {Spread.of(ratios).text(2)}\n")
        before = memory(running.pid, "VmRSS")
        began, used = time.perf_counter(), cpu_seconds(running.pid)
        size = stream(url, lines_of(texts, args.all_texts, args.texts_in_line))
        seconds, used = time.perf_counter() - began, cpu_seconds(running.pid) - used
        print(
            f"{args.all_texts} texts in one request: {args.all_texts / seconds:.0f} texts/s, {seconds:.0f} s, "
            f"{1e6 * used / args.all_texts:.0f} CPU µs a text, {size / 1e6:.0f} MB of responses"
        )
        print(f"memory before, MB: {before}; most ever: {memory(running.pid, 'VmHWM')}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("bundle", type=Path, help="a bundle for classification")
    add("--texts-a-round", type=int, default=5000, help="texts in the request of each round")
    add("--all-texts", type=int, default=100_000, help="texts in the last request")
    add("--texts-in-line", type=int, default=1, help="a list of so many in each line")
    add("--rounds", type=int, default=3)
    add("--rate", type=float, default=10.0, help="single requests a second")
    add(
        "--instant",
        action="store_true",
        help="put an engine that answers at once in the place of the real one",
    )
    add("--texts", type=Path, help="a file with one sentence a line; without it they are made up")
    add("--service", default="", help="settings for bert-serve")
    add("--start-seconds", type=float, default=300.0, help="the service may take to start")
    add("--log", type=Path, default=Path("runs/streaming.log"), help="the service's log")
    return parser.parse_args(arguments)


def rounds(
    args: argparse.Namespace,
    running: Running,
    texts: Sequence[str],
    requests: Sequence[Request],
    other: ProcessPoolExecutor,
) -> list[float]:
    """Print a line for each measurement; return the ratio of rates of each round."""
    print("| round | load | texts/s | CPU µs a text | single requests | p50 ms | p99 ms |")
    print("|---|---|---|---|---|---|---|")
    url, body, ratios, seconds = (
        running.url,
        lines_of(texts, args.texts_a_round, args.texts_in_line),
        list[float](),
        10.0,
    )
    for number in range(1, args.rounds + 1):
        alone = open_loop(url, requests, args.rate, seconds)
        print(row(number, "none", 0.0, 0.0, alone), flush=True)
        began, used = time.perf_counter(), cpu_seconds(running.pid)
        # It ends when the stream does, about as long as the one before took.
        beside = other.submit(open_loop, url, requests, args.rate, seconds)
        stream(url, body)
        seconds = time.perf_counter() - began
        streamed, cpu_s = args.texts_a_round / seconds, (cpu_seconds(running.pid) - used) / args.texts_a_round
        print(row(number, "one request of lines", streamed, cpu_s, beside.result()), flush=True)
        used = cpu_seconds(running.pid)
        beside = other.submit(open_loop, url, requests, args.rate, seconds)
        load = closed_loop(url, requests, CONNECTIONS, seconds)
        cpu_s = (cpu_seconds(running.pid) - used) / len(load.latencies_ms)
        title = f"{CONNECTIONS} connections"
        print(row(number, title, load.requests_per_s, cpu_s, beside.result()), flush=True)
        ratios.append(streamed / load.requests_per_s)
    return ratios


def lines_of(texts: Sequence[str], count: int, in_line: int) -> bytes:
    """Return requests of so many texts in all, round and round."""
    chosen, lines = itertools.islice(itertools.cycle(texts), count), list[str]()
    while part := list(itertools.islice(chosen, in_line)):
        lines.append(json.dumps({"text": part if in_line > 1 else part[0], "truncate": True}) + "\n")
    return "".join(lines).encode()


def stream(url: str, body: bytes) -> int:
    """Send lines in one request, then read; return the bytes of the responses. Raises RuntimeError if one is missing."""
    place = urlsplit(url)
    client = HTTPConnection(place.hostname or "", place.port, timeout=600)
    client.request("POST", "/classify", body, {"content-type": "application/x-ndjson"})
    response, count, size = client.getresponse(), 0, 0
    while line := response.readline():
        if not line.startswith(b'{"model"'):
            raise RuntimeError(line[:500].decode())
        count, size = count + 1, size + len(line)
    client.close()
    if count != (sent := body.count(b"\n")):
        raise RuntimeError(f"{count} responses of {sent}")
    return size


def memory(root: int, name: str) -> list[int]:
    """Return a figure of /proc/PID/status of each process that speaks HTTP, in MB."""
    found = []
    for pid in tree(root):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"frontend" in words:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found.append(round(int(status[name].split()[0]) / 1000))
    return found


def row(number: int, title: str, rate: float, cpu_s: float, single: OpenLoad) -> str:
    """Return a line of the table."""
    return (
        f"| {number} | {title} | {rate:.0f} | {1e6 * cpu_s:.0f} | {len(single.latencies_ms)} | "
        f"{single.percentile_ms(0.5):.1f} | {single.percentile_ms(0.99):.1f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
