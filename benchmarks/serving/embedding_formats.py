"""Size and time of a response of vectors as JSON numbers, base64 and a NumPy file, with an engine that answers at once.

    python -m benchmarks.serving.embedding_formats bundles/similarity
    python -m benchmarks.serving.embedding_formats bundles/similarity --texts 64 --rounds 50

The formats take turns, and the best round counts. Times are those of a client, from the request until the body is here, and
until the vectors are a NumPy array.
"""

import argparse
import io
import json
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.common.machine import machine_line
from benchmarks.common.timing import least_seconds
from benchmarks.serving.load.running import ROOT, free_port, prepare_process, server
from benchmarks.serving.load.wire import request_bytes

READERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "float": lambda body: np.array([each["embedding"] for each in json.loads(body)["results"]], np.float32),
    "base64": lambda body: np.stack(
        [np.frombuffer(b64decode(each["embedding"]), "<f4") for each in json.loads(body)["results"]]
    ),
    "binary": lambda body: np.asarray(np.load(io.BytesIO(body))),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, help="bundle for similarity")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--log", type=Path, default=Path("runs/embedding-formats.log"))
    args = parser.parse_args(arguments)
    print(machine_line())
    command = " ".join(sys.argv[1:] if arguments is None else arguments)
    print(f"Command: python -m benchmarks.serving.embedding_formats {command}\n", flush=True)
    prepare_process()
    port = free_port()
    service = ROOT / "benchmarks/serving/load/instant_service.py"
    start = [sys.executable, "-P", str(service), "--bundles", str(args.bundle), "--port", str(port)]
    first = request_bytes(f"http://127.0.0.1:{port}", "/embed", {"text": "a"})
    with server(start, port, first, args.log, patience_s=60) as running:
        compare(running.url, args.texts, args.rounds)
    return 0


def compare(url: str, texts: int, rounds: int) -> None:
    """Print a line for each format."""
    connection = HTTPConnection(urlsplit(url).netloc)
    bodies = {name: ask(connection, texts, name) for name in READERS}
    client = least_seconds({name: partial(read, connection, texts, name) for name in READERS}, rounds)
    service = least_seconds({name: partial(ask, connection, texts, name) for name in READERS}, rounds)
    print("| format | bytes | ms until it is here | ms until it is an array |\n|---|---|---|---|")
    for name, body in bodies.items():
        here, array = (1000 * seconds[name] for seconds in (service, client))
        print(f"| {name} | {len(body):,} | {here:.1f} | {array:.1f} |")


def read(connection: HTTPConnection, texts: int, encoding_format: str) -> np.ndarray:
    """Return the vectors of a response."""
    return READERS[encoding_format](ask(connection, texts, encoding_format))


def ask(connection: HTTPConnection, texts: int, encoding_format: str) -> bytes:
    """Return the body of a response."""
    body = {"text": ["a"] * texts, "encoding_format": encoding_format}
    connection.request("POST", "/embed", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {content[:500]!r}")
    return content


if __name__ == "__main__":
    sys.exit(main())
