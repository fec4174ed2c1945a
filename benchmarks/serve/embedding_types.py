"""Search by embeddings of each type and width, beside an exact search by float32.

    python -m benchmarks.serve.embedding_types bundles/similarity --data ../shared/data/glue/STS-B

The distinct sentences of STS-B are searched by those of its dev file. Recall@10 is the share of the ten that are nearest by
float32 at full width. The partner of a query is the other sentence of a pair that people called alike (4 of 5 or more).
"""

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from bert.bundle import read_bundle
from bert.tasks.vectors.output_types import DTYPES, Ranges

TOP, RESCORED, BATCH = 10, 40, 128
KINDS = ["float", "float16", "int8", "ubinary"]
ALIKE = 4.0
Array = NDArray[Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="of an embedding model, with ranges for int8")
    parser.add_argument("--data", type=Path, required=True, help="folder with STS-B's train.tsv and dev.tsv")
    parser.add_argument("--dimensions", type=int, nargs="*", default=[128], help="narrower widths to try")
    args = parser.parse_args(arguments)
    prepare_process()
    print(machine_line())
    print(f"Command: {command_line('serve.embedding_types', arguments)}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        command = service_command([args.bundle], port, [])
        with server(command, port, ready, Path(folder) / "log", 120.0) as running:
            report(running.url, args)
    return 0


def report(url: str, args: argparse.Namespace) -> None:
    """Print the table."""
    dev, train = (pairs(args.data / name) for name in ("dev.tsv", "train.tsv"))
    texts = list(dict.fromkeys(text for first, second, _ in [*dev, *train] for text in (first, second)))
    place = {text: number for number, text in enumerate(texts)}
    queries = np.array(list(dict.fromkeys(place[first] for first, _, _ in dev)))
    partners: dict[int, set[int]] = {}
    for first, second, score in dev:
        if score >= ALIKE and first != second:
            partners.setdefault(place[first], set()).add(place[second])
    manifest = read_bundle(args.bundle).manifest
    ranges = Ranges.from_dict(manifest.embedding_ranges)
    print(f"{len(queries):,} queries, {len(texts):,} texts, {len(partners)} queries with a partner\n")
    print("| numbers | type | bytes | search | recall@10 | partner among ten |\n|---|---|---|---|---|---|")
    exact: Array | None = None
    for width in (len(ranges.low), *args.dimensions):
        made = embedded(url, texts, width)
        low, high = ranges.of_first(width)
        for kind, how, scores in searches(made, queries, low, (high - low) / 255):
            found = best(scores, queries)
            exact = found if exact is None else exact
            recall = np.mean([len(set(a) & set(b)) / TOP for a, b in zip(found, exact, strict=True)])
            hits = [
                bool(partners[q] & set(row)) for q, row in zip(queries, found, strict=True) if q in partners
            ]
            size = made[kind][0].nbytes
            print(f"| {width} | {kind} | {size} | {how} | {recall:.3f} | {np.mean(hits):.3f} |", flush=True)


def searches(made: dict[str, Array], queries: Array, low: Array, step: Array) -> list[tuple[str, str, Array]]:
    """Return type, way of search and scores (Q, N), of what is not a candidate -inf."""
    exact, codes, bits = made["float"], made["int8"].astype(np.float32), made["ubinary"]
    asked = exact[queries]
    signs = np.unpackbits(bits, axis=1)[:, : exact.shape[1]].astype(np.float32) * 2 - 1
    hamming = signs[queries] @ signs.T  # falls by two with each bit that differs
    numbers = (codes + 128.5) * step + low
    candidates = np.full(hamming.shape, -np.inf, np.float32)
    first = np.argpartition(-hamming, RESCORED + 1, axis=1)[:, : RESCORED + 1]  # one of them is the query
    np.put_along_axis(candidates, first, 0, axis=1)
    return [
        ("float", "dot product", asked @ exact.T),
        ("float16", "dot product", asked @ made["float16"].astype(np.float32).T),
        ("int8", "dot product of a float query with the numbers that codes stand for", asked @ numbers.T),
        ("int8", "dot product of codes", codes[queries] @ codes.T),
        ("ubinary", "bits that differ", hamming),
        ("ubinary", f"the best {RESCORED}, then a float query with their bits", candidates + asked @ signs.T),
        ("ubinary", f"the best {RESCORED}, then a float query with int8", candidates + asked @ numbers.T),
    ]


def best(scores: Array, queries: Array) -> Array:
    """Return the TOP texts (Q, TOP) of each query, without itself."""
    scores[np.arange(len(queries)), queries] = -np.inf
    found: Array = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    return found


def pairs(file: Path) -> list[tuple[str, str, float]]:
    """Return the pairs of a file of STS-B with their scores."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return [(row[7], row[8], float(row[9])) for row in rows]


def embedded(url: str, texts: list[str], dimensions: int) -> dict[str, Array]:
    """Return the vectors of texts by type, as the service gives them in one response (Cohere's form)."""
    parts: dict[str, list[Array]] = {kind: [] for kind in KINDS}
    for start in range(0, len(texts), BATCH):
        body = {
            "texts": texts[start : start + BATCH],
            "output_dimension": dimensions,
            "embedding_types": KINDS,
        }
        headers = {"content-type": "application/json", "x-timeout-ms": "300000"}
        request = urllib.request.Request(f"{url}/v2/embed", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as response:
            found = json.load(response)["embeddings"]
        for kind in KINDS:
            parts[kind].append(np.array(found[kind], DTYPES[kind]))
    return {kind: np.concatenate(each) for kind, each in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
