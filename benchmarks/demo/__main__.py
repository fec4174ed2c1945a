"""The demo models on ordinary cases: sentences, questions and paragraphs such as a visitor types.

    make bundles && python -m benchmarks.demo
    bert-export --demo --precision fp32 --out runs/demo-fp32
    python -m benchmarks.demo bundles runs/demo-fp32 --write-misses     # after a model has changed

Serves the bundles and asks the 100 cases of each model, whose answers are those that a person would give. Prints how many
are right, and each miss with what the model said. A machine without fast 8-bit instructions serves fp32, where a few answers
differ: the misses of both are to be tolerated.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import machine_line, parser_of
from benchmarks.demo.cases import PATHS
from benchmarks.demo.misses import Miss, find_misses, report, write_misses
from benchmarks.serve.closed_loop import running_service
from bert.bundle import read_bundle


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask and report."""
    args = parse(arguments)
    misses: dict[tuple[str, str], list[Miss]] = {}
    for folder in args.bundles:
        with running_service(folder, ["--request-timeout-ms", "300000"]) as url:
            for model in PATHS:
                precision = read_bundle(folder / model).manifest.precision
                misses[model, precision] = find_misses(url, model)
    misses = dict(sorted(misses.items(), key=lambda item: list(PATHS).index(item[0][0])))
    machine = machine_line("onnxruntime")
    print(machine, report(misses), sep="\n\n")
    if args.write_misses:
        write_misses(misses, machine)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "bundles", type=Path, nargs="*", default=[Path("bundles")], help="folders of the demo bundles"
    )
    parser.add_argument(
        "--write-misses",
        action="store_true",
        help="tolerate today's misses: rewrite benchmarks/demo/tolerated_misses.json and the list in models/README.md",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
