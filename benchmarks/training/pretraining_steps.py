"""CPU time of pretraining steps, for comparing two versions in turns on a machine with other work.

    python -m benchmarks.training.pretraining_steps --corpus corpora/english --examples full_sentences chunks
    python -m benchmarks.training.pretraining_steps --corpus corpora/english --beside ../before

`--beside` is a checkout of another version: each round measures it and this one after the other, each in a process of its
own with one thread, every other round backwards. CPU time of the process counts, not the clock's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.machine import machine_line

WARM_STEPS = 2
MODEL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 512}


def main() -> None:
    """Measure in turns, or once with `--once`."""
    options = read_options()
    if options.once:
        print(json.dumps(measure(options, options.examples[0])))
        return
    print(machine_line("torch"))
    print(f"Command: python -m benchmarks.training.pretraining_steps {' '.join(sys.argv[1:])}\n")
    here = Path(__file__).parents[2]
    trees = {"this": here, **({"beside": options.beside.resolve()} if options.beside else {})}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(options.rounds):
        runs = [(examples, tree) for examples in options.examples for tree in trees]
        for examples, tree in runs[::-1] if number % 2 else runs:
            found.setdefault((examples, tree), []).append(once(examples, trees[tree], here))
    print("| examples | version | tokens a second of CPU time | lowest, highest | to `beside` | last loss |")
    print("|---|---|---|---|---|---|")
    for (examples, tree), rounds in found.items():
        speeds = [each["speed"] for each in rounds]
        others = [each["speed"] for each in found.get((examples, "beside"), rounds)]
        ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds, others, strict=True))
        losses = sorted({each["loss"] for each in rounds})
        print(
            f"| {examples} | {tree} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f}, {max(speeds):,.0f} "
            f"| {ratio:.2f} | {', '.join(map(repr, losses))} |"
        )


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder that bert-prepare wrote")
    parser.add_argument("--examples", nargs="+", default=["full_sentences"])
    parser.add_argument("--beside", type=Path, help="checkout of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def once(examples: str, tree: Path, here: Path) -> dict[str, float]:
    """Measure one version in a process of its own; this file is run, the rest is the version's."""
    command = [sys.executable, str(here / "benchmarks/training/pretraining_steps.py"), *sys.argv[1:]]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command += ["--examples", examples, "--once"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tree)
    if done.returncode:
        raise SystemExit(f"{tree} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(options: argparse.Namespace, examples: str) -> dict[str, float]:
    """Return the speed after the first steps, and the last loss."""
    import torch

    from training.core.distributed import Processes
    from training.corpus.shards import Corpus
    from training.pretrain import make_objective
    from training.pretraining.data import Batches, masking
    from training.pretraining.examples.base import SpecialIds
    from training.pretraining.settings import PretrainSettings
    from training.pretraining.trainer import make_loop

    torch.manual_seed(42)
    settings = PretrainSettings(
        corpus=options.corpus.resolve(), output_dir=Path("unused"), objective="mlm", examples=examples, model=MODEL,
        max_tokens=options.max_tokens, batch_size=options.batch_size, max_steps=options.steps + WARM_STEPS,
        precision=options.precision,
    )  # fmt: skip
    corpus, special = Corpus.open(settings.corpus), SpecialIds.load(settings.corpus)
    alone = Processes(0, 1, torch.device("cpu"))
    batches = Batches(settings, corpus, masking(settings, corpus, special), alone)
    loop = make_loop(settings, make_objective(settings, corpus, special), batches, alone)
    for numbers in loop.steps():
        if numbers["step"] == WARM_STEPS:
            began, before = time.process_time(), numbers["tokens"]
    return {
        "speed": (numbers["tokens"] - before) / (time.process_time() - began),
        "loss": numbers["loss"],
    }


if __name__ == "__main__":
    main()
