"""Training speed beside the Hugging Face Trainer: same weights, data, batch size and arithmetic, in turns.

    python -m benchmarks.train.speed --data ../shared/data --rounds 3

`sst2` is fine-tuning of short texts, `qa` of SQuAD's paragraphs in windows of 384 tokens that share 128, `mlm` pretraining
of rows of 128 tokens from fresh weights. Each baseline trains in a process of its own for `--steps` steps, one baseline
after the other in each round, so that a slow minute of the machine falls on all; every other round goes backwards. The
first steps are not timed. Tokens are real ones, without padding. A ratio is the median over rounds of what a baseline
does to what the Trainer does in the same round. `--compile` adds our loops with torch.compile of each layer.

The Trainer is measured with its default sampler and with `group_by_length`, which sorts 50 batches at a time, the longest
first: of 5 untimed and 50 timed steps, the default, each place in that order is timed once. Other numbers are for trying.

The losses of the first step, before anything is learned, tell whether all train the same thing. In `qa` ours is a little
lower: of the same scores ours is over the paragraph and [CLS], the Trainer's over question and padding too.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import machine_line
from benchmarks.train.tasks import TASKS, TrainingSpeed, measured

WARM_STEPS = 5
"""Not timed: memory is taken and kernels are chosen; compiled layers are compiled, for one length and for any."""
DOCUMENTS = 2000
"""Wikipedia articles that `mlm` reads: more rows than any run of this benchmark takes."""
OURS, COMPILED, TRAINER, BY_LENGTH = "ours", "ours, compiled", "Trainer", "Trainer, group_by_length"
SAME_LOSS = 0.2
"""Shares of the first loss by which baselines may differ: batches and heads are drawn anew, and see `qa` above."""
Rounds = list[dict[str, TrainingSpeed]]


def main() -> int:
    """Measure, or with `--baseline` train as one of them; returns 1 where first losses differ."""
    options = read_options()
    if options.baseline:
        print(json.dumps(dataclasses.asdict(measure(options))))
        return 0
    print(machine_line("torch", "transformers"))
    print(f"Command: python -m benchmarks.train.speed {' '.join(sys.argv[1:])}", flush=True)
    alike = True
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(options.data, Path(folder)) if "mlm" in options.tasks else Path(folder)
        print(
            "\n| task | baseline | tokens/s | to the Trainer | lowest, highest | loss, first | last | tokens/step |\n"
            "|---|---|---:|---:|---:|---:|---:|---:|"
        )
        for task in options.tasks:
            rounds = [one_round(options, task, corpus, number) for number in range(options.rounds)]
            print("\n".join(rows(task, rounds)), flush=True)
            alike &= are_alike(task, rounds)
    return 0 if alike else 1


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with glue/SST-2, squad/ and corpus/")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=WARM_STEPS + 50, help="at least 2; see group_by_length above"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves torch's own choice")
    parser.add_argument("--compile", action="store_true", help="measure our loops with torch.compile too")
    parser.add_argument("--baseline", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def one_round(options: argparse.Namespace, task: str, corpus: Path, number: int) -> dict[str, TrainingSpeed]:
    """Measure every baseline once."""
    names = [OURS, *([COMPILED] if options.compile else []), TRAINER]
    if task != "mlm":  # its rows are of one length
        names.append(BY_LENGTH)
    return {name: in_its_process(task, corpus, name) for name in (names[::-1] if number % 2 else names)}


def in_its_process(task: str, corpus: Path, baseline: str) -> TrainingSpeed:
    """Measure one baseline in a process of its own, with the options of this one."""
    command = [sys.executable, "-m", "benchmarks.train.speed", *sys.argv[1:]]
    command += ["--tasks", task, "--corpus", str(corpus), "--baseline", baseline]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{baseline} on {task} failed:\n{done.stderr[-3000:]}")
    return TrainingSpeed(**json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace) -> TrainingSpeed:
    """Train as one baseline."""
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    options.compile = options.baseline == COMPILED
    with tempfile.TemporaryDirectory() as folder:
        if options.baseline in (OURS, COMPILED):
            from benchmarks.train import ours

            marks = ours.train(options, Path(folder))
        else:
            from benchmarks.train import trainer

            marks = trainer.train(options, Path(folder), by_length=options.baseline == BY_LENGTH)
    return measured(marks, WARM_STEPS)


def rows(task: str, rounds: Rounds) -> list[str]:
    """Return a task's lines of the table."""
    lines = []
    for name in [name for name in (OURS, COMPILED, TRAINER, BY_LENGTH) if name in rounds[0]]:
        runs = [each[name] for each in rounds]
        ratios = [each[name].tokens_per_s / each[TRAINER].tokens_per_s for each in rounds]
        cells = (
            f"{statistics.median(run.tokens_per_s for run in runs):,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}, {max(ratios):.2f}",
            f"{statistics.median(run.first_loss for run in runs):.2f}",
            f"{statistics.median(run.last_loss for run in runs):.2f}",
            f"{statistics.median(run.tokens_per_step for run in runs):,.0f}",
        )
        lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return lines


def are_alike(task: str, rounds: Rounds) -> bool:
    """Tell whether the first losses of all baselines are near the Trainer's; say so where they are not."""
    wanted = rounds[0][TRAINER].first_loss
    found = {name: run.first_loss for name, run in rounds[0].items()}
    apart = {name: loss for name, loss in found.items() if abs(loss - wanted) > SAME_LOSS * wanted}
    if apart:
        print(f"{task}: the first losses differ, {found}: not all train the same thing", file=sys.stderr)
    return not apart


def prepare(data: Path, folder: Path) -> Path:
    """Prepare some Wikipedia text, with the vocabulary of BERT base; return the folder."""
    source = next((data / "corpus").glob("wiki-en-*"))
    command = [
        sys.executable,
        "-m",
        "training.commands.prepare",
        "--sources",
        str(source),
        "--max-documents",
        str(DOCUMENTS),
    ]
    command += [
        "--tokenizer",
        str(data / "vocab/bert-base-uncased.txt"),
        "--output-dir",
        str(folder / "corpus"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the corpus was not prepared:\n{done.stderr[-3000:]}")
    return folder / "corpus"


if __name__ == "__main__":
    sys.exit(main())
