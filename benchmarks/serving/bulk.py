"""bert-predict beside the loop that calls the engine directly, and beside a pipeline of `transformers` with batches.

    bert-export --checkpoint models/sentiment --out runs/bulk/sentiment --precision fp32
    python -m benchmarks.serving.bulk runs/bulk/sentiment --int8-bundle bundles/sentiment --checkpoint models/sentiment

All read the same texts, and take turns: A B C, A B C. A rate counts from the first text to the last and leaves out the
loading; bert-predict also reads and writes its files in it. CPU time, of which other work on the machine takes nothing away,
is that of the process without its start. The answers of all are compared.
"""

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import machine_line
from benchmarks.serving.baselines.plain_checkpoint import write_plain
from benchmarks.serving.engine_loop import text_loops
from benchmarks.serving.load.texts import made_up_texts, read_texts
from bert.checkpoint.weights import read_checkpoint
from service.cpu_count import usable_cores

BATCHES = (8, 32)
"""Batch sizes of the pipeline."""
RATE = re.compile(r"([\d,]+) rows/s")
Answers = list[tuple[str, float]]
"""Label and score of each text."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    rate: float
    """Texts per second."""
    cpu_ms: float
    """CPU time of a text."""
    answers: Answers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    texts = read_texts(args.texts)[: args.count] if args.texts else made_up_texts(args.count)
    print(machine_line("onnxruntime", "torch", "transformers"))
    print(
        f"{len(texts)} texts, {args.rounds} rounds; python -m benchmarks.serving.bulk {shlex.join(sys.argv[1:])}"
    )
    with tempfile.TemporaryDirectory() as aside:
        source = Path(aside) / "in.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        report(measured(runs_of(args, texts, source), args.rounds))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, help="in fp32, of a classifier")
    parser.add_argument("--int8-bundle", type=Path, help="the same in 8 bits")
    parser.add_argument("--checkpoint", type=Path, help="for the pipeline of transformers")
    parser.add_argument("--texts", type=Path, help="texts, one a line; by default made up, of mixed lengths")
    parser.add_argument("--count", type=int, default=20_000, help="texts")
    parser.add_argument(
        "--pipeline-count", type=int, default=4_000, help="texts that the pipeline reads in a round"
    )
    parser.add_argument(
        "--pipeline-threads", type=int, default=usable_cores(),
        help="of torch; several wait for one another busily, so that on a busy machine only one tells its CPU time",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


Run = Callable[[], Measured]


def runs_of(args: argparse.Namespace, texts: Sequence[str], source: Path) -> dict[str, Run]:
    """Return what takes turns, by name; the first is what others are compared with."""
    runs: dict[str, Run] = {}
    bundles = {"fp32": args.bundle, **({"int8": args.int8_bundle} if args.int8_bundle else {})}
    for precision, bundle in bundles.items():
        runs[f"bert-predict, {precision}"] = partial(predicted, bundle, source, len(texts))
        runs[f"engine loop, {precision}"] = partial(looped, bundle, texts)
    if args.checkpoint:
        folder = source.parent / "plain"
        write_plain(read_checkpoint(args.checkpoint), folder)
        runs |= {
            f"transformers, batch_size={size}": partial(
                piped, folder, texts[: args.pipeline_count], size, args.pipeline_threads
            )
            for size in BATCHES
        }
    return runs


def predicted(bundle: Path, source: Path, count: int) -> Measured:
    """Run the command; its rate is what it says itself."""
    alone = source.with_name("one.jsonl")
    alone.write_text('{"text": "a"}\n')
    out, start_s, _ = command(bundle, alone)
    out, cpu_s, said = command(bundle, source)
    rate = float(RATE.findall(said)[-1].replace(",", ""))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return Measured(rate, 1000 * (cpu_s - start_s) / count, [(row["label"], row["score"]) for row in rows])


def command(bundle: Path, source: Path) -> tuple[Path, float, str]:
    """Run bert-predict; return its output, CPU seconds and what it said."""
    out = source.with_name("out.jsonl")
    words = [sys.executable, "-m", "service.bulk.command", str(bundle), str(source), "--out", str(out)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*words, "--overwrite", "--restart", "--truncate"], stderr=subprocess.PIPE, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out, cpu_s, done.stderr


def looped(bundle: Path, texts: Sequence[str]) -> Measured:
    """Run the loop that is the fastest on a quiet machine: one on each core, texts sorted in eights."""
    loops = text_loops(bundle, texts, usable_cores(), seconds=4.0)
    found = next(loop for loop in loops if loop.name.startswith("sorted") and "loops" in loop.name)
    return Measured(found.items_per_s, found.cpu_ms, [])


def piped(folder: Path, texts: Sequence[str], size: int, threads: int) -> Measured:
    """Run the pipeline as its documentation has it."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    pipe: Any = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    pipe(list(texts[:size]), truncation=True, batch_size=size)
    began, cpu = time.perf_counter(), time.process_time()
    found = pipe(list(texts), truncation=True, batch_size=size)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    answers = [(each["label"], each["score"]) for each in found]
    return Measured(len(texts) / took, 1000 * cpu / len(texts), answers)


def measured(runs: dict[str, Run], rounds: int) -> dict[str, list[Measured]]:
    """Let the runs take turns."""
    found: dict[str, list[Measured]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
            last = found[name][-1]
            print(f"  {name}: {last.rate:,.0f} texts/s, {last.cpu_ms:.2f} ms", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, list[Measured]]) -> None:
    """Print a table; ratios are medians of those inside a round, answers are compared with the first run's."""
    print("\n| | texts/s | CPU ms a text | texts/s, bert-predict's over it | CPU, its over bert-predict's | other labels | "
          "largest difference |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    first = next(iter(found.values()))
    for name, runs in found.items():
        own = found.get(f"bert-predict, {name.rpartition(', ')[2]}", first)
        faster = median(one.rate / other.rate for one, other in zip(own, runs, strict=True))
        cheaper = median(other.cpu_ms / one.cpu_ms for one, other in zip(own, runs, strict=True))
        pairs = list(zip(runs[-1].answers, first[-1].answers, strict=False))
        others = sum(one[0] != other[0] for one, other in pairs)
        largest = max((abs(a[1] - b[1]) for a, b in pairs if a[0] == b[0]), default=0.0)
        compared = f"{others} of {len(pairs)} | {largest:.1e}" if pairs else "|"
        rate, cpu_ms = median(run.rate for run in runs), median(run.cpu_ms for run in runs)
        print(f"| {name} | {rate:,.0f} | {cpu_ms:.2f} | {faster:.2f} | {cheaper:.2f} | {compared} |")


if __name__ == "__main__":
    sys.exit(main())
