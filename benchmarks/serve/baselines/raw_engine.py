"""The engine in a loop, in a process of its own: prints a JSON line of what each loop gave.

PYTHON -m benchmarks.serve.baselines.raw_engine BUNDLE --jobs FILE --kind text --seconds 10

`--padded FOLDER` in place of a bundle: the standard export there, padded.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.serve.engine_loop import document_loops, padded_loops, text_loops
from benchmarks.serve.load.process_tree import memory_bytes
from benchmarks.serve.report.percentiles import percentile
from service.system import usable_cores


def main() -> int:
    """Run the loops."""
    parser = argparse.ArgumentParser(description=__doc__)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("bundle", type=Path, nargs="?")
    model.add_argument("--padded", type=Path)
    parser.add_argument(
        "--jobs", type=Path, required=True, help="JSON: a list of requests, each a list of texts"
    )
    parser.add_argument("--kind", required=True, choices=["text", "list", "document"])
    parser.add_argument("--seconds", type=float, required=True, help="of each loop")
    args = parser.parse_args()
    jobs = json.loads(args.jobs.read_text(encoding="utf-8"))
    if args.kind == "document":
        documents = [(question, context) for question, context in jobs]
        loops = document_loops(args.bundle, documents, usable_cores(), args.seconds)
    else:
        texts = [text for job in jobs for text in job]
        looped, folder = (padded_loops, args.padded) if args.padded else (text_loops, args.bundle)
        loops = looped(folder, texts, usable_cores(), args.seconds)
    items_per_job = len(jobs[0]) if args.kind == "list" else 1
    for loop in loops:
        found = {
            "name": loop.name,
            "requests_per_s": loop.items_per_s / items_per_job,
            "p50_ms": percentile(loop.batch_ms, 0.5),
            "p99_ms": percentile(loop.batch_ms, 0.99),
            "cpu_ms": loop.cpu_ms * items_per_job,
            "peak_bytes": memory_bytes(os.getpid()),
        }
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
