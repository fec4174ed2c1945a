"""Measure whether named keys get under load what their rules allow: tokens a second, requests in progress, shares.

    python -m benchmarks.serve.key_rules bundles/sentiment
    python -m benchmarks.serve.key_rules bundles/sentiment --frontends 2 --seconds 30

Clients of each key send lists without a pause, and come back soon after a 429. The mean of requests in progress follows from
their latencies (Little's law). The lanes of `light` and `heavy` are full all the time, so their shares decide.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from benchmarks.serve.load.storm import Storm, storm
from benchmarks.serve.load.texts import SENTENCES, made_up_texts
from benchmarks.serve.load.wire import ask, request_bytes

RULES = {
    "metered": {"tokens_per_second": 2000},
    "counted": {"requests_per_second": 10},
    "narrow": {"concurrency": 2},
    "light": {"share": 1},
    "heavy": {"share": 3},
    "free": {},
}
BACK_S = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="a classifier's")
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--clients", type=int, default=24, help="of each key")
    parser.add_argument("--texts", type=int, default=8, help="sentences in each request")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--log", type=Path, default=Path("runs/key-rules.log"), help="the service's log")
    args = parser.parse_args(arguments)
    print(machine_line())
    print(f"Command: {command_line('serve.key_rules', arguments)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(
            json.dumps({name: {"key": f"{name}-key-1", **rules} for name, rules in RULES.items()})
        )
        port = free_port()
        given = [
            "--api-keys-file",
            str(keys),
            "--frontends",
            str(args.frontends),
            "--max-queue-tokens",
            "1000000",
        ]
        ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        with server(service_command([args.bundle], port, given), port, ready, args.log, 120.0) as running:
            print("\n| keys that ask | rule | measured | 200 | 429 |\n|---|---|---|---|---|")
            asyncio.run(cases(running.url, args))
    return 0


async def cases(url: str, args: argparse.Namespace) -> None:
    """Measure each rule alone, then beside a key that floods."""
    texts = made_up_texts(args.texts, mixture=SENTENCES)
    usage = await asyncio.to_thread(ask, url, keyed(url, texts, "free"))
    tokens = usage["usage"]["tokens"]

    async def ask_as(*names: str) -> list[Storm]:
        return await asyncio.gather(
            *(
                storm(url, itertools.repeat(keyed(url, texts, name)), args.clients, args.seconds, BACK_S)
                for name in names
            )
        )

    for beside in ((), ("free",)):
        metered, *_ = await ask_as("metered", *beside)
        row(("metered", *beside), rate(2000, metered, "tokens"), tokens * metered.answered_per_s, metered)
        counted, *_ = await ask_as("counted", *beside)
        row(("counted", *beside), rate(10, counted, "requests"), counted.answered_per_s, counted)
        narrow, *_ = await ask_as("narrow", *beside)
        held = sum(narrow.latencies_ms) / 1000 / narrow.seconds
        row(("narrow", *beside), "2 requests in progress", held, narrow)
    light, heavy = await ask_as("light", "heavy")
    row(("heavy", "light"), "3 times as much", heavy.answered_per_s / light.answered_per_s, heavy)


def rate(per_s: int, found: Storm, what: str) -> str:
    """Say what a rate allows in the time of a storm: a second's worth comes at once."""
    return f"{per_s} {what}/s: {per_s * (1 + 1 / found.seconds):.1f} with those at once"


def row(names: Sequence[str], rule: str, measured: float, found: Storm) -> None:
    """Print a line; the statuses are those of the first key."""
    statuses = [str(found.statuses[status]) for status in ("200", "429")]
    cells = [" beside ".join(names), rule, f"{measured:.2f}", *statuses]
    print(f"| {' | '.join(cells)} |", flush=True)


def keyed(url: str, texts: Sequence[str], key: str) -> bytes:
    """Return a request with a key."""
    plain = request_bytes(url, "/classify", {"text": list(texts), "truncate": True})
    return plain.replace(b"\r\n", f"\r\nx-api-key: {key}-key-1\r\n".encode(), 1)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
