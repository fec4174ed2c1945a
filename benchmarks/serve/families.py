"""Each family's requests per second, served by us and by a pipeline of `transformers`, on random weights of real shapes.

    python -m benchmarks.serve.families --out runs/families              # an hour, on a quiet machine
    python -m benchmarks.serve.families --short --models electra-small   # two minutes

Each model is exported by `bert-export` with the precision that it chooses by itself, or that of --precision. The two
servers take turns, round after round. Writes table.md and figures.json; returns 1 where a model is below --goal.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.baselines.encoder_shapes import SHAPES, export_random, random_places
from benchmarks.serve.baselines.registry import CONTENDERS, CoreSplit, Place
from benchmarks.serve.load.measure import LoadPlan, Round, measure
from benchmarks.serve.load.running import prepare_process
from benchmarks.serve.load.workloads import NAMES, Workload, workload
from bert.bundle import read_bundle
from service.system import usable_cores

SERVERS = ("pipeline", "ours")


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Both servers on one model. Rates are medians over the rounds."""

    model: str
    precision: str
    pipeline: float
    """Requests per second."""
    ours: float
    ratio: float
    """Ours over the pipeline's, the median of the rounds' own."""
    pipeline_p50_ms: float
    ours_p50_ms: float
    failures: list[str]
    others_percent: float
    """Share of the machine's cores that other work took, the largest of all rounds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if a model failed or is below the goal."""
    args = parse(arguments)
    work = workload(args.workload, None)
    plan = LoadPlan((args.connections,), args.seconds, 0.0, (), args.warm_seconds)
    results = []
    for name in args.models.split(","):
        place = prepare(name, args.out / name, args.precision, reuse=args.reuse)
        results.append(compare(name, place, work, plan, args.rounds, args.out / "logs"))
        print(row(results[-1]), flush=True)
    header = [
        machine_line("onnxruntime", "torch", "transformers"),
        f"workload {work.name}, {args.connections} connections, {args.rounds} rounds of {args.seconds:g} s",
        command_line("serve.families", arguments),
    ]
    write(args.out, header, results, args.goal)
    return int(any(found.failures or not found.ratio >= args.goal for found in results))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    known = [name for name in SHAPES if name not in ("tiny", "bert-large", "xlm-roberta-base")]
    add(
        "--models",
        default=",".join(known),
        help=f"comma-separated, of {', '.join(SHAPES)}; by default all but tiny and the two with most weights",
    )
    add("--precision", help="of bert-export; by default what it chooses")
    add(
        "--workload",
        choices=NAMES[:2],
        default="mixed",
        help="sentences alone, or with questions and paragraphs",
    )
    add("--connections", type=int, default=32)
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=10.0, help="of each closed loop")
    add("--warm-seconds", type=float, default=2.0)
    add("--goal", type=float, default=2.0, help="smallest ratio to the pipeline")
    add("--short", action="store_true", help="one round of 3 seconds")
    add("--reuse", action="store_true", help="take the bundles that an earlier run left in --out")
    add("--out", type=Path, default=Path("runs/families"), help="folder for models, table, figures and logs")
    args = parser.parse_args(arguments)
    if unknown := sorted(set(args.models.split(",")) - set(SHAPES)):
        parser.error(f"no such model: {', '.join(unknown)}; known are {', '.join(SHAPES)}")
    if args.short:
        args.rounds, args.seconds, args.warm_seconds = 1, 3.0, 1.0
    return args


def prepare(name: str, folder: Path, precision: str | None, *, reuse: bool) -> Place:
    """Write a random model and its bundle. Raises SystemExit where it cannot be exported."""
    model, bundle = random_places(folder, precision)
    if not (reuse and (bundle / "bundle.json").is_file()):
        print(f"{name}: exporting", flush=True)
        export_random(name, folder, precision)
    return Place(model.resolve(), bundle.resolve(), None, sys.executable, sys.executable)


def compare(name: str, place: Place, work: Workload, plan: LoadPlan, rounds: int, logs: Path) -> ModelResult:
    """Measure both servers in turns. Their answers are not compared: the tests of the export do that."""
    split = CoreSplit(1, usable_cores())
    measured: dict[str, list[Round]] = {server: [] for server in SERVERS}
    for number in range(1, rounds + 1):
        for server in SERVERS:
            log = logs / f"{name}-{server}-{number}.log"
            measured[server].append(measure(CONTENDERS[server], place, split, work, (), plan, log))
    precision = read_bundle(place.bundle, verify_hashes=False).manifest.precision
    return summary(name, precision, measured)


def summary(name: str, precision: str, measured: dict[str, list[Round]]) -> ModelResult:
    """Return the figures of a model, 0 for a server that failed in every round."""
    good = {server: [loop for each in rounds for loop in each.closed] for server, rounds in measured.items()}
    rates = {server: _median([loop.requests_per_s for loop in loops]) for server, loops in good.items()}
    p50_ms = {server: _median([loop.p50_ms for loop in loops]) for server, loops in good.items()}
    both = [
        pair
        for pair in zip(*(measured[server] for server in SERVERS), strict=True)
        if all(r.closed for r in pair)
    ]
    failures = [each.failure for rounds in measured.values() for each in rounds if each.failure]
    return ModelResult(
        name,
        precision,
        rates["pipeline"],
        rates["ours"],
        _median([ours.best_rate / theirs.best_rate for theirs, ours in both]),
        p50_ms["pipeline"],
        p50_ms["ours"],
        failures,
        100 * max((loop.others for loops in good.values() for loop in loops), default=0.0),
    )


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def row(found: ModelResult) -> str:
    """Return a line of the table."""
    cells = [
        found.model,
        found.precision,
        f"{found.pipeline:.1f}",
        f"{found.ours:.1f}",
        f"{found.ratio:.2f}x",
        f"{found.pipeline_p50_ms:.0f} / {found.ours_p50_ms:.0f}",
        f"{found.others_percent:.0f}%",
    ]
    return f"| {' | '.join(cells)} |"


def write(out: Path, header: Sequence[str], results: Sequence[ModelResult], goal: float) -> None:
    """Write table.md and figures.json, and print the table."""
    heads = [
        "model",
        "precision",
        "pipeline, requests/s",
        "ours",
        "ratio",
        "p50 ms, pipeline / ours",
        "other work",
    ]
    lines = [*(f"{line}  " for line in header), "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [row(found) for found in results]
    lines += ["", *(f"- {found.model} is below {goal:g}x" for found in results if not found.ratio >= goal)]
    lines += [
        f"- {found.model} failed: {' '.join(each.split())[:600]}"
        for found in results
        for each in found.failures
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    figures = {"header": list(header), "models": [asdict(found) for found in results]}
    (out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
