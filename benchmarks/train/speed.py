"""Training speed beside the Hugging Face Trainer: same weights, data, batch size and arithmetic, in turns.

    python -m benchmarks.train.speed --data ../shared/data --rounds 3
    python -m benchmarks.train.speed --tasks sst2 mlm --model base --batch 256 --no-attention-dropout --compile

`sst2` is fine-tuning of short texts, `qa` of SQuAD's paragraphs in windows of 384 tokens that share 128, `mlm` pretraining
of rows of 128 tokens from fresh weights. Each baseline trains in a process of its own for `--steps` steps, one baseline
after the other in each round, so that a slow minute of the machine falls on all; every other round goes backwards. The
first steps are not timed. Tokens are real ones, without padding. A ratio is the median over rounds of what a baseline
does to what the Trainer does in the same round. `--compile` adds our pretraining with torch.compile of each layer.

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

from benchmarks.common import BERT_SHAPES, command_line, machine_line, parser_of
from benchmarks.train.tasks import EXAMPLES, TASK_FILES, TASKS, TrainingSpeed, measured, model_of

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
    print(f"Command: {command_line('train.speed')}", flush=True)
    alike = True
    with tempfile.TemporaryDirectory() as folder:
        more = prepare(options, Path(folder))
        print(
            "\n| task | baseline | tokens/s | to the Trainer | lowest, highest | loss, first | last | tokens/step |\n"
            "|---|---|---:|---:|---:|---:|---:|---:|"
        )
        for task in options.tasks:
            rounds = [one_round(options, task, more, number) for number in range(options.rounds)]
            print("\n".join(rows(task, rounds)), flush=True)
            alike &= are_alike(task, rounds)
    return 0 if alike else 1


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder with glue/SST-2, squad/ and corpus/; else made up")
    parser.add_argument(
        "--model", choices=BERT_SHAPES, default="minilm", help="shape of models with fresh weights"
    )
    parser.add_argument(
        "--batch", type=int, default=0, help="texts, windows or rows a step; 0 is the task's own"
    )
    parser.add_argument(
        "--attention-dropout", action=argparse.BooleanOptionalAction, default=True, help="of fresh models"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=WARM_STEPS + 50, help="at least 2; see group_by_length above"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves torch's own choice")
    parser.add_argument("--compile", action="store_true", help="measure pretraining with torch.compile too")
    parser.add_argument("--baseline", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--made-up", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.data and "qa" in options.tasks:
        parser.error("the task qa needs --data: the others have made-up data")
    return options


def one_round(
    options: argparse.Namespace, task: str, more: list[str], number: int
) -> dict[str, TrainingSpeed]:
    """Measure every baseline once; those that fail are left out."""
    names = [OURS, *([COMPILED] if options.compile and task == "mlm" else []), TRAINER]
    if task != "mlm":  # its rows are of one length
        names.append(BY_LENGTH)
    found = {name: in_its_process(task, more, name) for name in (names[::-1] if number % 2 else names)}
    return {name: speed for name, speed in found.items() if speed is not None}


def in_its_process(task: str, more: list[str], baseline: str) -> TrainingSpeed | None:
    """Measure one baseline in a process of its own, with the options of this one; None where it fails."""
    command = [sys.executable, "-m", "benchmarks.train.speed", *sys.argv[1:]]
    command += ["--tasks", task, *more, "--baseline", baseline]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{baseline} on {task} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
        return None
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
    for name in (OURS, COMPILED, TRAINER, BY_LENGTH):
        runs = [each[name] for each in rounds if name in each]
        both = [each for each in rounds if {name, TRAINER} <= each.keys()]
        ratios = [each[name].tokens_per_s / each[TRAINER].tokens_per_s for each in both]
        if not runs:
            continue
        cells = (
            f"{statistics.median(run.tokens_per_s for run in runs):,.0f}",
            f"{statistics.median(ratios):.2f}" if ratios else "",
            f"{min(ratios):.2f}, {max(ratios):.2f}" if ratios else "",
            f"{statistics.median(run.first_loss for run in runs):.2f}",
            f"{statistics.median(run.last_loss for run in runs):.2f}",
            f"{statistics.median(run.tokens_per_step for run in runs):,.0f}",
        )
        lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return lines


def are_alike(task: str, rounds: Rounds) -> bool:
    """Tell whether the first losses of all baselines are near the Trainer's; say so where they are not."""
    if TRAINER not in rounds[0]:
        return False
    wanted = rounds[0][TRAINER].first_loss
    found = {name: run.first_loss for name, run in rounds[0].items()}
    apart = {name: loss for name, loss in found.items() if abs(loss - wanted) > SAME_LOSS * wanted}
    if apart:
        print(f"{task}: the first losses differ, {found}: not all train the same thing", file=sys.stderr)
    return not apart


def prepare(options: argparse.Namespace, folder: Path) -> list[str]:
    """Prepare what the tasks read; return the options that name it."""
    if options.data is None:
        from benchmarks.train.made_up import write_corpus, write_shape, write_texts

        write_texts(folder / TASK_FILES["sst2"], EXAMPLES["sst2"])
        write_shape(folder / "model", model_of(options))
        write_corpus(folder / "corpus", 2 * DOCUMENTS)
        return ["--data", str(folder), "--made-up", str(folder), "--corpus", str(folder / "corpus")]
    if "mlm" not in options.tasks:
        return []
    # Some Wikipedia text, with the vocabulary of BERT base.
    command = [sys.executable, "-m", "training.commands.prepare", "--max-documents", str(DOCUMENTS)]
    command += ["--sources", str(next((options.data / "corpus").glob("wiki-en-*")))]
    command += ["--tokenizer", str(options.data / "vocab/bert-base-uncased.txt")]
    done = subprocess.run(
        [*command, "--output-dir", str(folder / "corpus")], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the corpus was not prepared:\n{done.stderr[-3000:]}")
    return ["--corpus", str(folder / "corpus")]


if __name__ == "__main__":
    sys.exit(main())
