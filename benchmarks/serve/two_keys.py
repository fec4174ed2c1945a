"""Latency of one key's single texts while another key floods the service, with a lane for each and without.

    python -m benchmarks.serve.two_keys bundles/sentiment
    python -m benchmarks.serve.two_keys bundles/sentiment --flood 64 --texts 16 --seconds 30

The flood is a closed loop of lists on many connections. The other client sends a sentence, waits for the answer, pauses, and
sends the next. In the first line nobody else asks. In the second both have one key, and so one lane.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from benchmarks.serve.load.texts import SENTENCES, made_up_texts
from benchmarks.serve.load.wire import connect, exchange, request_bytes
from benchmarks.serve.report.percentiles import percentile

PAUSE_S = 0.05
CASES = (
    ("nobody else asks", 0, "single"),
    ("both have one key", 1, "flood"),
    ("each has its own", 1, "single"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="a classifier's")
    parser.add_argument("--flood", type=int, default=64, help="connections of the flood")
    parser.add_argument("--texts", type=int, default=16, help="sentences in each of its requests")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--log", type=Path, default=Path("runs/two-keys.log"), help="the service's log")
    args = parser.parse_args(arguments)
    print(machine_line())
    print(f"Command: {command_line('serve.two_keys', arguments)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(json.dumps({name: {"key": f"{name}-key"} for name in ("flood", "single")}))
        port = free_port()
        given = [
            "--api-keys-file",
            str(keys),
            "--request-timeout-ms",
            "300000",
            "--max-queue-tokens",
            "1000000",
        ]
        ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        with server(service_command([args.bundle], port, given), port, ready, args.log, 120.0) as running:
            print(
                "\n| the other client | sentences | p50 ms | p99 ms | the flood's sentences/s |\n|---|---|---|---|---|"
            )
            for name, floods, key in CASES:
                latencies, flooded = asyncio.run(measured(running.url, args, args.flood * floods, key))
                cells = [percentile(latencies, share) for share in (0.5, 0.99)]
                print(
                    f"| {name} | {len(latencies)} | {cells[0]:.1f} | {cells[1]:.1f} | {flooded:.0f} |",
                    flush=True,
                )
    return 0


async def measured(
    url: str, args: argparse.Namespace, connections: int, key: str
) -> tuple[list[float], float]:
    """Return the single client's sorted latencies in milliseconds, and the flood's sentences a second."""
    texts, answered = made_up_texts(2000, mixture=SENTENCES), 0
    lists = [texts[at : at + args.texts] for at in range(0, len(texts) - args.texts, args.texts)]

    async def flood(number: int) -> None:
        nonlocal answered
        streams, at = await connect(url), number
        with suppress(asyncio.IncompleteReadError):
            while True:
                await exchange(streams, keyed(url, lists[at % len(lists)], "flood"))
                answered += args.texts
                at += connections

    floods = [asyncio.create_task(flood(number)) for number in range(connections)]
    await asyncio.sleep(3.0 if connections else 0.5)
    streams, latencies, start = await connect(url), list[float](), time.perf_counter()
    before = answered
    while (now := time.perf_counter()) - start < args.seconds:
        await exchange(streams, keyed(url, texts[len(latencies) % len(texts)], key))
        latencies.append(1000 * (time.perf_counter() - now))
        await asyncio.sleep(PAUSE_S)
    rate = (answered - before) / (time.perf_counter() - start)
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    return sorted(latencies), rate


def keyed(url: str, text: object, key: str) -> bytes:
    """Return a request with a key."""
    plain = request_bytes(url, "/classify", {"text": text, "truncate": True})
    return plain.replace(b"\r\n", f"\r\nx-api-key: {key}-key\r\n".encode(), 1)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
