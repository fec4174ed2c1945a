"""The plan of `bert-serve --plan` beside what the service then does.

    python -m benchmarks.serve.planned bundles/ner
    python -m benchmarks.serve.planned bundles/ner --cores 2 --percents 50,70,90 --seconds 60

Plan and service have the first cores to themselves, and the client has the others, if there are any. A closed loop of 32
connections shows what the service can do. Then requests come at random, at rates that the plan predicted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.loops import closed_loop, open_loop
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from benchmarks.serve.load.texts import made_up_texts, read_texts
from benchmarks.serve.load.wire import request_bytes

CONNECTIONS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="one bundle")
    parser.add_argument("--path", default="/ner", help="of its endpoint")
    parser.add_argument("--cores", type=int, default=1, help="of plan and service")
    parser.add_argument("--percents", default="30,50,70,80,90", help="of the capacity, multiples of 5")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--texts", type=Path, help="a file with one text a line; without it they are made up")
    parser.add_argument("--log", type=Path, default=Path("runs/planned.log"), help="the service's log")
    args = parser.parse_args(arguments)
    texts = read_texts(args.texts) if args.texts else made_up_texts(2000)
    cores = sorted(os.sched_getaffinity(0))
    pinned = ["taskset", "-c", ",".join(map(str, cores[: args.cores]))]
    print(machine_line())
    print(f"Command: {command_line('serve.planned', arguments)}", flush=True)
    plan = planned(args, pinned, texts)
    request_ms = plan["engine_ms"] + plan["http_ms"]
    print(f"A request takes {plan['engine_ms']:.2f} ms in batches and {plan['http_ms']:.2f} ms beside them")
    port = free_port()
    ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
    with server([*pinned, *service_command([args.bundle], port)], port, ready, args.log, 120.0) as running:
        os.sched_setaffinity(0, cores[args.cores :] or cores)
        requests = [(request_bytes(running.url, args.path, {"text": text}),) for text in texts]
        closed_loop(running.url, requests, CONNECTIONS, 2.0)
        measured = closed_loop(running.url, requests, CONNECTIONS, args.seconds).requests_per_s
        expected = 1000 * args.cores / request_ms
        print(
            f"Most requests/s: planned {expected:.1f}, measured {measured:.1f} ({measured / expected - 1:+.0%})"
        )
        print(
            "\n| of the most | requests/s | answered/s | p50 ms planned | measured | p99 ms planned | measured | failed |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for percent in map(int, args.percents.split(",")):
            print_load(running.url, requests, percent, plan["loads"][percent // 5 - 1], args.seconds)
    return 0


def planned(args: argparse.Namespace, pinned: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Return the plan for these texts, whatever the rate and p99."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        command = [
            *pinned,
            sys.executable,
            "-m",
            "service.cli",
            "--plan",
            "--json",
            "--bundles",
            str(args.bundle),
        ]
        command += ["--requests", str(file), "--requests-per-s", "1", "--p99-ms", "1000000"]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def print_load(
    url: str, requests: Sequence[Sequence[bytes]], percent: int, load: dict[str, float], seconds: float
) -> None:
    """Measure a load, and print its line."""
    found = open_loop(url, requests, load["requests_per_s"], seconds, at_random=True)
    late = ", client late" if found.client_was_late else ""
    cells = [
        f"{percent}%",
        f"{load['requests_per_s']:.1f}",
        f"{len(found.latencies_ms) / found.seconds:.1f}",
        *(f"{load['p50_ms']:.1f}", f"{found.percentile_ms(0.5):.1f}"),
        *(f"{load['p99_ms']:.1f}", f"{found.percentile_ms(0.99):.1f}"),
        f"{found.failures}{late}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
