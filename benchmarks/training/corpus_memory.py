"""Memory of bert-prepare does not grow with the corpus: the peak for a text, and for ten times as much.

python -m benchmarks.training.corpus_memory books-000.jsonl.xz books-001.jsonl.xz ... --tokenizer vocab.txt

The first run reads the first file, the second ten files: all that are given, over again where there are fewer. The peak
is the largest resident set of any one process; the second run's is at least the first's.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

TIMES = 10


class PreparationRun(NamedTuple):
    """Size and time of one run."""

    documents: int
    tokens: int
    shards: int
    seconds: float
    peak_mib: float


def measure(
    sources: list[str], tokenizer: Path, processes: int, shard_mb: float, language: str
) -> PreparationRun:
    """Run bert-prepare in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "training.commands.prepare",
            "--output-dir",
            folder,
            "--language",
            language,
        ]
        command += ["--tokenizer", str(tokenizer), "--processes", str(processes), "--shard-mb", str(shard_mb)]
        for source in sources:
            command += ["--sources", source]
        began = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if run.returncode:
            raise SystemExit(run.stderr)
        splits = json.loads((Path(folder) / "corpus.json").read_text(encoding="utf-8"))["splits"].values()
    print(run.stderr, file=sys.stderr)
    return PreparationRun(
        sum(split["documents"] for split in splits),
        sum(split["tokens"] for split in splits),
        sum(len(split["shards"]) for split in splits),
        seconds,
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10,  # Linux counts in KiB
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--shard-mb", type=float, default=4.0, help="small, so that the first run has many too"
    )
    parser.add_argument("--language", default="en")
    arguments = parser.parse_args()
    print(f"{date.today()}, {platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"$ python -m benchmarks.training.corpus_memory {' '.join(sys.argv[1:])}\n")
    print("| corpus | documents | tokens | shards | seconds | peak memory, MiB |\n|---|---|---|---|---|---|")
    common = (arguments.tokenizer, arguments.processes, arguments.shard_mb, arguments.language)
    peaks = []
    for times in (1, TIMES):
        done = measure(list(islice(cycle(arguments.sources), times)), *common)
        peaks.append(done.peak_mib)
        counts = f"{done.documents:,} | {done.tokens:,} | {done.shards}"
        print(f"| {times} x | {counts} | {done.seconds:.0f} | {done.peak_mib:.0f} |", flush=True)
    print(f"\nten times the text, {peaks[1] / peaks[0]:.2f} times the memory")


if __name__ == "__main__":
    main()
