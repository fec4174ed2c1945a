"""Effect of packing on batches of mixed texts: CPU time in the engine, attention's scores, padding.

    python -m benchmarks.engine.packing bundles/sentiment

The cost model is fitted as the service fits it when it starts. Each batch runs as one run and as `plan_runs` divides it, in
turns, on one thread. Needed scores are the sum of the squared lengths.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.machine import machine_line
from benchmarks.serving.load.texts import made_up_texts
from bert.bundle import read_bundle
from bert.encoding import Encoding
from bert.packing import CostModel, PackingRules, RowRun, plan_runs
from bert.tokenizer import Tokenizer
from service.autotune.cost_curve import fit_cost
from service.autotune.engine_timing import time_batches, time_wide_text
from service.engine.onnx_engine import OnnxEngine
from service.engine.sample_texts import TEXT_TOKENS

CURVE_TOKENS, CURVE_S = 512, 5.0
SIZES = (2, 4, 8, 12, 24)
"""Texts of a batch."""
REPEATS = 5


@dataclass(slots=True)
class Sums:
    """Sums over the batches of one size, packed in one way."""

    cpu_s: float = 0.0
    plan_s: float = 0.0
    scores: int = 0
    places: int = 0
    runs: int = 0

    def add_plan(self, runs: Sequence[RowRun], seconds: float) -> None:
        """Count a batch's scores and places."""
        self.plan_s += seconds
        self.runs += len(runs)
        self.scores += sum(run.packing.rows * run.packing.width**2 for run in runs)
        self.places += sum(run.packing.places for run in runs)


def fitted_cost(engine: OnnxEngine, max_tokens: int, guess: CostModel) -> CostModel:
    """Fit the cost model of an engine on this thread. Raises SystemExit where attention seems to cost nothing."""
    curve = time_batches(engine, CURVE_TOKENS, budget_s=CURVE_S, clock=time.thread_time)
    wide = time_wide_text(engine, curve, max_tokens, budget_s=CURVE_S, clock=time.thread_time)
    cost = fit_cost(curve, TEXT_TOKENS, wide, guess) if wide else None
    if cost is None:
        raise SystemExit(
            "no cost model could be fitted: the machine is too busy, or the model reads too few tokens"
        )
    return cost


def measure(
    engine: OnnxEngine, batches: Sequence[Sequence[Encoding]], costs: Sequence[CostModel], rules: PackingRules
) -> list[Sums]:
    """Return the sums of each cost model over the same batches; each batch's best time of some turns counts."""
    sums = [Sums() for _ in costs]
    for batch in batches:
        lengths = [len(text) for text in batch]
        for cost, each in zip(costs, sums, strict=True):
            began = time.thread_time()
            runs = plan_runs(lengths, cost, rules)
            each.add_plan(runs, time.thread_time() - began)
        best = [float("inf")] * len(costs)
        for _ in range(REPEATS):
            for number, cost in enumerate(costs):
                engine.set_cost(cost)
                began = time.thread_time()
                engine.run(batch)
                best[number] = min(best[number], time.thread_time() - began)
        for each, seconds in zip(sums, best, strict=True):
            each.cpu_s += seconds
    return sums


def row(batches: Sequence[Sequence[Encoding]], one: Sums, planned: Sums) -> str:
    """Return a line of the table."""
    tokens = sum(len(text) for batch in batches for text in batch)
    needed = sum(len(text) ** 2 for batch in batches for text in batch)
    count = len(batches)
    cells = [
        f"{len(batches[0])}",
        f"{tokens / count:.0f}",
        f"{1000 * one.cpu_s / count:.1f}",
        f"{1000 * planned.cpu_s / count:.1f}",
        f"{planned.cpu_s / one.cpu_s:.3f}",
        f"{planned.runs / count:.2f}",
        f"{one.scores / needed:.2f}",
        f"{planned.scores / needed:.2f}",
        f"{planned.places / tokens - 1:.1%}",
        f"{1e6 * planned.plan_s / count:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--batches", type=int, default=16, help="batches of each size")
    args = parser.parse_args(arguments)
    bundle = read_bundle(args.bundle)
    tokenizer, rules = Tokenizer.load(bundle.tokenizer_path), PackingRules(**bundle.manifest.packing)
    engine = OnnxEngine(bundle, 1)
    max_tokens = bundle.manifest.max_position_embeddings
    cost = fitted_cost(engine, max_tokens, bundle.manifest.expected_cost)
    encoded = (tokenizer.single(pieces) for pieces in tokenizer.pieces(made_up_texts(2000)))
    texts = [text for text in encoded if len(text) <= max_tokens]
    print(f"{machine_line('onnxruntime')}, 1 thread")
    print(f"$ python -m benchmarks.engine.packing {' '.join(arguments or sys.argv[1:])}")
    print(
        f"{bundle.manifest.precision}: attention costs as much as the rest in rows of {cost.attention_width:.0f} tokens, "
        f"a run as much as {cost.run_tokens:.0f} tokens\n"
    )
    heads = ["texts", "tokens", "one run, ms", "planned, ms", "ratio", "runs", "scores over needed, one run"]
    heads += ["planned", "padding", "planning, µs"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    chance = random.Random(0)
    for size in SIZES:
        batches = [chance.sample(texts, size) for _ in range(args.batches)]
        one, planned = measure(engine, batches, [replace(cost, run_tokens=1e9), cost], rules)
        print(row(batches, one, planned), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
