"""Measure how requests fare while `bert-serve --model` exports its 8 bits in the background.

    python -m benchmarks.hub.beside_export                  # bert-base, at half of its capacity

A classifier of a published shape with random weights serves in float32. Requests come at a constant rate while the exporting
child runs, and while it is stopped (SIGSTOP), in turns. Prints a table in Markdown with machine, date and command.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.hub.random_models import NAMES, write_model
from benchmarks.serve.load.loops import closed_loop, open_loop
from benchmarks.serve.load.process_tree import tree
from benchmarks.serve.load.running import BaselineError, free_port, prepare_process, server
from benchmarks.serve.load.texts import made_up_texts
from benchmarks.serve.load.wire import request_bytes

EXPORT = "model_export"
"""Part of the child's command line."""
CONNECTIONS, CAPACITY_S = 8, 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns 1 if the export ended too early for two turns."""
    args = parse(arguments)
    print(f"`{command_line('hub.beside_export', arguments).strip()}`")
    print(machine_line("onnxruntime", "numpy"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, port = Path(folder) / args.model, free_port()
        write_model(args.model, checkpoint)
        url = f"http://127.0.0.1:{port}"
        requests = [[request_bytes(url, "/classify", {"text": text})] for text in made_up_texts(500)]
        cache = ["--model-cache", str(Path(folder) / "cache")]
        command = [
            sys.executable,
            "-m",
            "service.cli",
            "--port",
            str(port),
            "--model",
            str(checkpoint),
            *cache,
        ]
        with server(command, port, requests[0][0], Path(folder) / "log", 300.0) as running:
            child = exporting(running.pid)
            os.kill(child, signal.SIGSTOP)
            capacity = closed_loop(url, requests, CONNECTIONS, CAPACITY_S).requests_per_s
            rate = args.share * capacity
            print(f"\n{capacity:.1f} requests/s are the capacity, {rate:.1f} come.\n")
            print("| turn | export | requests | p50 ms | p99 ms | failed |\n|---|---|---|---|---|---|")
            for turn in range(1, args.turns + 1):
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    if child not in tree(running.pid):
                        print("The export has ended: fewer or shorter turns, or a larger model.")
                        return int(turn < 2)
                    os.kill(child, number)
                    time.sleep(1)
                    load = open_loop(url, requests, rate, args.seconds)
                    p50, p99 = load.percentile_ms(0.5), load.percentile_ms(0.99)
                    what = "runs" if number == signal.SIGCONT else "stopped"
                    cells = [turn, what, len(load.latencies_ms), f"{p50:.1f}", f"{p99:.1f}", load.failures]
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", default="bert-base", choices=NAMES)
    parser.add_argument("--share", type=float, default=0.5, help="share of the capacity that comes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a turn")
    return parser.parse_args(arguments)


def exporting(service: int) -> int:
    """Return the process that exports, once there is one."""
    for _ in range(600):
        for pid in tree(service):
            if EXPORT in Path(f"/proc/{pid}/cmdline").read_text("utf-8", errors="replace"):
                return pid
        time.sleep(0.1)
    raise BaselineError("the service exports nothing")


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
