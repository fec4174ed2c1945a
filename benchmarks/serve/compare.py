"""Every baseline in turn on the same weights and texts: a table, a plot and all figures.

    python -m benchmarks.serve.compare runs/compare-fp32/sentiment --checkpoint models/sentiment \\
        --baselines-python .venv-bench/bin/python --out runs/compare

Each round starts, checks, measures and stops one baseline after the other, so that a slow minute of the machine falls
on all of them. `--baselines engine,pipeline,ours` takes some; `--list` names them.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.baselines.plain_checkpoint import export_standard, is_written, write_plain
from benchmarks.serve.baselines.registry import CONTENDERS, CoreSplit, Place, ServerBaseline, shapes
from benchmarks.serve.load import measure
from benchmarks.serve.load.answers import Expected
from benchmarks.serve.load.running import BaselineError, prepare_process
from benchmarks.serve.load.workloads import DOCUMENT, LIST, NAMES, Workload, workload
from benchmarks.serve.report import report
from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from service.system import usable_cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; returns 1 if a baseline failed or answered wrong."""
    args = parse(arguments)
    if args.list:
        print("\n".join(f"{name}: {baseline.title}" for name, baseline in CONTENDERS.items()))
        return 0
    work = workload(args.workload, args.texts)
    names, left_out = chosen(args.baselines, work, args.int8_bundle is not None, args.vllm_python is not None)
    place, expected = prepare(args, work, needs_onnx=any(_uses_onnx(name) for name in names))
    plan = planned(args, work)
    baseline = args.baseline or ("reader" if work.kind == DOCUMENT else "pipeline")
    session = Session(args.out, place, work, expected, plan)
    kept = {name: session.shape(name, args.shapes) for name in names if CONTENDERS[name].serves}
    comparison = session.compare(names, kept, args.rounds, baseline, header(args, arguments, work), left_out)
    write(comparison, args.out)
    return int(any(not row.passed or len(row.good) < len(row.rounds) for row in comparison.rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("bundle", type=Path, nargs="?", default=Path("runs/compare-fp32/sentiment"), help="ours, fp32")
    add("--checkpoint", type=Path, default=Path("models/sentiment"), help="what the bundle was made from")
    add("--int8-bundle", type=Path, help="ours in 8 bits")
    add("--workload", choices=NAMES, default="mixed", help="documents want a bundle and checkpoint for qa")
    add("--texts", type=Path, help="a file with one text a line, or of SQuAD for documents; else made up")
    add("--baselines", default="all", help="comma-separated names, or all")
    add("--baselines-python", default=sys.executable, help="interpreter with the extra `bench`")
    add("--infinity-python", help="that with requirements/bench-infinity.txt; by default the same")
    add("--vllm-python", help="that with vLLM; without it vLLM takes no part")
    add("--baseline", help="the baseline that rates are divided by; by default the pipeline")
    add("--rounds", type=int, default=3)
    add("--connections", help="of the closed loops, comma-separated")
    add("--seconds", type=float, default=10.0, help="of each closed loop")
    add("--open-seconds", type=float, default=20.0, help="of each open loop")
    add("--warm-seconds", type=float, default=2.0)
    add("--start-seconds", type=float, default=300.0, help="a baseline may take to start")
    add("--shapes", choices=["try", "whole", "each"], default="try",
        help="of those tuned by hand: one worker with all cores, a worker on each, or the better one")  # fmt: skip
    add("--service", default="", help='more settings for bert-serve, like "--engine-slots 1"')
    add("--out", type=Path, default=Path("runs/compare"), help="folder for table, plot, figures and logs")
    add("--list", action="store_true", help="name the baselines")
    return parser.parse_args(arguments)


def planned(args: argparse.Namespace, work: Workload) -> measure.LoadPlan:
    """Return how long and how hard each baseline is measured."""
    given = tuple(int(each) for each in args.connections.split(",")) if args.connections else work.connections
    return measure.LoadPlan(
        connections=given,
        closed_s=args.seconds,
        open_s=args.open_seconds,
        warm_s=args.warm_seconds,
        start_s=args.start_seconds,
    )


def chosen(asked: str, work: Workload, has_int8: bool, has_vllm: bool = False) -> tuple[list[str], list[str]]:
    """Return the names of those that take part, and a sentence on those of them that cannot, or are asked otherwise."""
    names = list(CONTENDERS) if asked == "all" else asked.split(",")
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise SystemExit(f"no such baseline: {', '.join(unknown)}; known are {', '.join(CONTENDERS)}")
    fits = [name for name in names if CONTENDERS[name].takes(work.kind)]
    needing = {
        "--int8-bundle": [name for name in fits if CONTENDERS[name].needs_int8 and not has_int8],
        "--vllm-python": [name for name in fits if CONTENDERS[name].needs_vllm and not has_vllm],
    }
    taking = [name for name in fits if not any(name in without for without in needing.values())]
    sentences = []
    served = {CONTENDERS[name].title for name in fits}
    if unfit := sorted(name for name in names if name not in fits and CONTENDERS[name].title not in served):
        sentences.append(f"No form for {work.name}: {', '.join(unfit)}.")
    sentences += [
        f"No {option} was given for {', '.join(without)}." for option, without in needing.items() if without
    ]
    if single := [name for name in taking if work.kind == LIST and LIST not in CONTENDERS[name].forms]:
        sentences.append(
            f"No form for lists, so each text is a request, all of a list at once: {', '.join(single)}."
        )
    return taking, sentences


def prepare(
    args: argparse.Namespace, work: Workload, *, needs_onnx: bool
) -> tuple[Place, list[list[Expected]]]:
    """Write the model in the forms that baselines load, and compute the right answers."""
    _check_float32(args.bundle)
    folder, python = args.out / "model", _interpreter(args.baselines_python)
    checkpoint = read_checkpoint(args.checkpoint)
    print("computing the reference's answers", flush=True)
    expected = work.expected(checkpoint)
    if not is_written(checkpoint, folder):
        write_plain(checkpoint, folder)
    if needs_onnx and not (folder / "model.onnx").is_file():
        print("exporting the standard ONNX graph", flush=True)
        export_standard(folder, python)
    place = Place(
        folder=folder.resolve(),
        bundle=args.bundle.resolve(),
        int8_bundle=args.int8_bundle.resolve() if args.int8_bundle else None,
        python=python,
        infinity_python=_interpreter(args.infinity_python or python),
        service=tuple(shlex.split(args.service)),
        vllm_python=_interpreter(args.vllm_python) if args.vllm_python else None,
    )
    return place, expected


def _check_float32(bundle: Path) -> None:
    """Raise BaselineError for a bundle that is not what its rows in the table say."""
    precision = read_bundle(bundle, verify_hashes=False).manifest.precision
    if precision != "fp32":
        raise BaselineError(f"{bundle} is {precision}; make one with bert-export --precision fp32")


class Session:
    """A comparison under way."""

    def __init__(
        self, out: Path, place: Place, work: Workload, expected: list[list[Expected]], plan: measure.LoadPlan
    ) -> None:
        self.out, self.place, self.work, self.expected, self.plan = out, place, work, expected, plan

    def shape(self, name: str, wanted: str) -> CoreSplit:
        """Return how a baseline shares the cores out: as wanted, or the faster way in a trial."""
        choices = shapes(CONTENDERS[name], usable_cores())
        if len(choices) == 1 or wanted != "try":
            return choices[-1] if wanted == "each" else choices[0]
        connections = report.usual_load(self.plan.connections)
        rates = {}
        for choice in choices:
            log = self.out / "logs" / f"{name}-trial-{choice.workers}.log"
            rates[choice] = measure.trial_rate(
                CONTENDERS[name], self.place, choice, self.work, connections, self.plan, log
            )
            print(f"{name}, {choice} (workers x threads): {rates[choice]:.1f} requests/s", flush=True)
        return max(rates, key=rates.__getitem__)

    def compare(
        self,
        names: Sequence[str],
        kept: dict[str, CoreSplit],
        rounds: int,
        baseline: str,
        head: list[str],
        left_out: Sequence[str],
    ) -> report.ServingComparison:
        """Measure all of them, round after round."""
        measured: dict[str, list[measure.Round]] = {name: [] for name in kept}
        engine: dict[str, list[measure.EngineLoop]] = {}
        for number in range(1, rounds + 1):
            for name in names:
                print(f"round {number} of {rounds}: {name}", flush=True)
                if name in kept:
                    measured[name].append(self._measure(name, kept[name], number))
                    continue
                for loop in self._engine_loops(name, number):
                    engine.setdefault(f"{CONTENDERS[name].title}: {loop.name}", []).append(loop)
        return report.ServingComparison(
            head,
            [report.EngineRow(title, loops) for title, loops in engine.items()],
            [self._row(name, kept[name], found) for name, found in measured.items()],
            baseline,
            self.plan.connections,
            self.plan.shares,
            left_out,
        )

    def _measure(self, name: str, shape: CoreSplit, number: int) -> measure.Round:
        log = self.out / "logs" / f"{name}-{number}.log"
        found = measure.measure(CONTENDERS[name], self.place, shape, self.work, self.expected, self.plan, log)
        rates = ", ".join(f"{loop.requests_per_s:.1f} at {loop.connections}" for loop in found.closed)
        print(f"  {rates or 'no rate'}{'; failed: ' + found.failure if found.failure else ''}", flush=True)
        return found

    def _engine_loops(self, name: str, number: int) -> list[measure.EngineLoop]:
        log, jobs = self.out / "logs" / f"{name}-{number}.log", self.out / "jobs.json"
        try:
            return measure.engine_loops(
                CONTENDERS[name], self.place, self.work, self.plan.closed_s, log, jobs
            )
        except BaselineError as error:
            raise SystemExit(f"{name}: {error}") from None

    def _row(self, name: str, shape: CoreSplit, found: list[measure.Round]) -> report.Row:
        baseline: ServerBaseline = CONTENDERS[name]
        tolerance = baseline.tolerated(self.work.kind)
        passed = all(each.checked is not None and each.checked.passes(tolerance) for each in found)
        title = f"{baseline.title} ({shape})" if baseline.all_shapes else baseline.title
        return report.Row(name, title, found, passed)


def header(args: argparse.Namespace, arguments: Sequence[str] | None, work: Workload) -> list[str]:
    """Return machine, date, command and texts."""
    count = f"{len(work.jobs)} {'documents' if work.kind == DOCUMENT else 'requests'}"
    return [
        machine_line(),
        f"workload {work.name}: {count} ({work.origin}), {args.rounds} rounds, closed loops of {args.seconds:g} s, "
        f"open loops of {args.open_seconds:g} s",
        command_line("serve.compare", arguments),
    ]


def write(comparison: report.ServingComparison, out: Path) -> None:
    """Write table.md, figures.json and plot.png, and print the table."""
    # Imported here: the comparison is not lost where matplotlib is missing.
    text = "\n".join([*(f"{line}  " for line in comparison.header), "", report.table(comparison), "",
                      report.notes(comparison), ""])  # fmt: skip
    (out / "table.md").write_text(text, encoding="utf-8")
    (out / "figures.json").write_text(report.as_json(comparison), encoding="utf-8")
    print(f"\n{text}")
    from benchmarks.serve.report.plot import draw

    draw(comparison, out / "plot.png")
    print(f"{out}/table.md, {out}/figures.json, {out}/plot.png")


def _interpreter(name: str) -> str:
    """Return a path as seen from here: baselines are started elsewhere. A link into an environment stays one."""
    return os.path.abspath(name) if os.sep in name else name


def _uses_onnx(name: str) -> bool:
    return name.startswith(("mosec", "litserve")) or name in ("infinity-optimum", "engine-padded")


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
