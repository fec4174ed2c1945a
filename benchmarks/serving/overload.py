"""Responses of a running service that is asked for more than it can do.

    bert-serve --port 8000 --bundles bundles/sentiment &
    python -m benchmarks.serving.overload http://127.0.0.1:8000 --connections 17 --texts 60 --words 118

Every connection sends one request, all at once; with `--seconds` each goes on, and waits as long as Retry-After
says when it is refused. Prints machine, date and command, how many answers of each status, and the tokens of those that
were 200. The engine's tokens are those of the whole service: nobody else may ask it meanwhile.
"""

import argparse
import json
import statistics
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import urlsplit

from benchmarks.common.machine import machine_line
from benchmarks.serving.load.texts import COMMON


@dataclass(slots=True)
class Tally:
    """Responses so far; shared by the connections."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    good_tokens: int = 0
    retry_after_s: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: int, seconds: float, body: bytes, retry_after: str | None) -> float:
        """Count an answer; return the seconds to wait before the next request."""
        with self.lock:
            self.statuses[status] += 1
            self.seconds.setdefault(status, []).append(seconds)
            if status == 200:
                self.good_tokens += int(json.loads(body)["usage"]["tokens"])
            if retry_after is not None:
                self.retry_after_s.append(int(retry_after))
        return float(retry_after or 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="where bert-serve listens")
    parser.add_argument("--connections", type=int, default=17)
    parser.add_argument("--texts", type=int, default=60, help="in a request")
    parser.add_argument(
        "--words", type=int, default=118, help="in a text: a token each, and two special ones"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each connection goes on")
    parser.add_argument("--timeout-ms", type=int, help="X-Timeout-Ms of each request")
    args = parser.parse_args(arguments)
    text = " ".join(COMMON[i % len(COMMON)] for i in range(args.words))
    body = json.dumps({"text": [text] * args.texts}).encode()
    headers = {"content-type": "application/json"}
    if args.timeout_ms:
        headers["x-timeout-ms"] = str(args.timeout_ms)
    try:
        tally, before, began = Tally(), engine_tokens(args.url), time.monotonic()
    except OSError as error:
        raise SystemExit(f"no service answers at {args.url}: {error}") from None
    print(machine_line())
    command = " ".join(sys.argv[1:] if arguments is None else arguments)
    print(f"Command: python -m benchmarks.serving.overload {command}", flush=True)
    with ThreadPoolExecutor(args.connections) as threads:
        ask = (args.url, body, headers, began + args.seconds, tally)
        started = [threads.submit(connection, *ask) for _ in range(args.connections)]
    print(summary(tally, time.monotonic() - began, engine_tokens(args.url) - before))
    for each in started:
        each.result()  # a connection that broke is no answer, and the counts above lack it
    return 0


def connection(url: str, body: bytes, headers: dict[str, str], until: float, tally: Tally) -> None:
    """Send one request, and more until the time is over."""
    place = urlsplit(url)
    client = HTTPConnection(place.hostname or "", place.port, timeout=120)
    while True:
        start = time.monotonic()
        client.request("POST", "/classify", body, headers)
        response = client.getresponse()
        content = response.read()
        pause = tally.add(
            response.status, time.monotonic() - start, content, response.getheader("retry-after")
        )
        if time.monotonic() + pause >= until:
            break
        time.sleep(pause)
    client.close()


def engine_tokens(url: str) -> float:
    """Return the tokens that the service's engine has run."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("bert_batch_tokens_sum"))


def summary(tally: Tally, seconds: float, engine: float) -> str:
    """Return the counts and the share of the engine's tokens that became answers."""
    lines = [f"{seconds:.1f} s; the engine ran {engine:.0f} tokens, {engine / seconds:.0f} a second"]
    for status, count in sorted(tally.statuses.items()):
        times = tally.seconds[status]
        lines.append(
            f"{status}: {count} answers, after {statistics.median(times):.2f} s in the middle, "
            f"{max(times):.2f} s at most"
        )
    lines.append(
        f"answered with 200: {tally.good_tokens} tokens, {tally.good_tokens / max(1.0, engine):.2f} of the "
        f"engine's, {tally.good_tokens / seconds:.0f} a second"
    )
    if tally.retry_after_s:
        lines.append(f"Retry-After: {min(tally.retry_after_s)} to {max(tally.retry_after_s)} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
