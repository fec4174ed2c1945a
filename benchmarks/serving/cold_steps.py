"""Time of a lone request's steps on caches that the engine has just used, and in a loop.

    python -m benchmarks.serving.cold_steps bundles/sentiment

A batch reads the whole model, which throws everything else out of a core's caches; so of a service that is not busy each
step runs as if for the first time. Microseconds, the median of many texts; cold is right after a text in the engine.
"""

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.machine import machine_line
from benchmarks.serving.load.texts import made_up_texts
from bert.bundle import read_bundle
from bert.graph_inputs import joined, lone_inputs, row_inputs, split
from bert.packing import Packing, pack
from bert.runtime import share_memory_arena
from bert.tasks import classification
from bert.tasks.registry import TASKS
from bert.tokenizer import Tokenizer
from service.cpu_count import usable_cores
from service.engine.onnx_engine import OnnxEngine

HOT = 3
"""Runs before the one that counts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, help="a bundle for classification")
    parser.add_argument("--texts", type=int, default=200)
    args = parser.parse_args(arguments)
    print(machine_line("onnxruntime", "numpy", "tokenizers"))
    print(f"Command: python -m benchmarks.serving.cold_steps {shlex.join(arguments or sys.argv[1:])}\n")
    share_memory_arena()
    bundle = read_bundle(args.bundle)
    engine = OnnxEngine(bundle, usable_cores(), spin=True)
    tokenizer, spec = Tokenizer.load(bundle.tokenizer_path), bundle.manifest.task
    texts = made_up_texts(args.texts)
    pieces = tokenizer.pieces(texts, only_ids=True)
    encodings = [tokenizer.single(each, spec.max_tokens, truncate=True) for each in pieces]
    logits = engine.run(encodings[:1]).texts[0]
    head = TASKS[spec.task].head_positions(encodings[0])
    steps: dict[str, Callable[[int], object]] = {
        "tokenise": lambda n: tokenizer.pieces([texts[n]], only_ids=True),
        "put [CLS] and [SEP] around": lambda n: tokenizer.single(pieces[n], spec.max_tokens, truncate=True),
        "find a place, as for many texts": lambda n: pack([len(encodings[n])]),
        "inputs, as for many texts": lambda n: row_inputs(
            encodings[n : n + 1], Packing(1, len(encodings[n]), (0,)), [head]
        ),
        "inputs of a lone text": lambda n: lone_inputs(encodings[n], head),
        "divide the output": lambda _: split(logits, [1]),
        "look for what is not finite": lambda _: bool(np.isfinite(joined([logits])).all()),
        "decode": lambda _: classification.decode(logits, spec),
    }
    print("| step | in a loop, us | after the engine, us |\n|---|---|---|")
    for name, step in steps.items():
        hot = [timed(step, n, before=step) for n in range(args.texts)]
        cold = [timed(step, n, before=lambda n: engine.run([encodings[n]])) for n in range(args.texts)]
        print(f"| {name} | {statistics.median(hot):.0f} | {statistics.median(cold):.0f} |", flush=True)
    return 0


def timed(step: Callable[[int], object], number: int, *, before: Callable[[int], object]) -> float:
    """Return the microseconds of a step after some runs of something."""
    for _ in range(HOT):
        before(number)
    started = time.perf_counter()
    step(number)
    return 1e6 * (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
