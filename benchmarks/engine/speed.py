"""Our engine beside PyTorch on the same weights: tokens a second, and what share that is of the device's matmul rate.

    python -m benchmarks.engine.speed --models minilm
    python -m benchmarks.engine.speed --device cuda --models base large --compile --trace runs/trace

On a GPU float16 with packed attention and captured graphs, on a CPU float32 in packed rows; PyTorch has the same
precision, its scaled_dot_product_attention, and each batch padded to its longest text. No HTTP and no tokenizing. Weights
are random and of the real shape. The engines take turns; the median round counts. Tokens are real ones, never padding.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import (
    BERT_SHAPES,
    command_line,
    least_seconds,
    machine_line,
    parser_of,
    seconds_in_turns,
)
from benchmarks.engine import timeline
from benchmarks.engine.padded_torch import PaddedTorch, Scores, matmul_flops
from benchmarks.engine.shapes import flops, random_model, write_random_bundle
from benchmarks.engine.texts import MIXED, in_batches, random_texts
from bert.config import BertConfig
from bert.encoding import Encoding
from service.engine.onnx_engine import OnnxEngine
from service.system import usable_cores

LONE_TOKENS = 16
OURS, PADDED, COMPILED = "ours", "PyTorch, padded", "torch.compile, padded"
Run = Callable[[Sequence[Encoding]], Scores]


@dataclass(frozen=True, slots=True)
class Rate:
    """Result of one engine on one kind of texts."""

    tokens_per_s: float
    share: float
    """Share of the measured rate of a large product."""
    apart: float
    """Largest difference of a logit from those of the first engine, over its largest."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(f"{machine_line('torch', 'numpy')}{_gpu(args.device)}")
    print(f"Command: {command_line('engine.speed', arguments)}\n")
    torch.set_num_threads(args.threads)
    peak = matmul_flops(args.device, lambda product: least_seconds({"product": product}, 10)["product"])
    print(f"A large product: {peak / 1e12:.2f} Tflop/s in {'float16' if args.half else 'float32'}\n")
    print("| model | tokens a text | engine | tokens/s | to PyTorch | of the matmul rate | logits apart |")
    print("|---|---|---|---|---|---|---|", flush=True)
    lone = list[str]()
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            engines, config = opened(name, Path(folder), args)
            for lengths in args.lengths:
                texts = random_texts(lengths, args.tokens)
                # Of mixed lengths each batch has a shape of its own, and would be compiled anew.
                kinds = {name: run for name, run in engines.items() if lengths != MIXED or name != COMPILED}
                rates = measured(kinds, config, texts, args.batch_tokens, args.rounds, peak)
                for row in table(name, lengths, rates):
                    print(row, flush=True)
            engines.pop(COMPILED, None)
            lone += [f"| {name} | " + " | ".join(alone(engines, args.rounds)) + " |"]
            if args.trace is not None:
                batch = in_batches(texts, args.batch_tokens)[0]
                print(timeline.report(engines, batch, args.trace / name, on_gpu=args.half))
    print(f"\nA text of {LONE_TOKENS} tokens alone, ms, median and p99:\n\n| model | {' | '.join(engines)} |")
    print("|---" * (len(engines) + 1) + "|\n" + "\n".join(lone))
    return 0


def opened(name: str, folder: Path, args: argparse.Namespace) -> tuple[dict[str, Run], BertConfig]:
    """Return the engines by name, ours first."""
    model = random_model(name)
    config = model.bert.config
    bundle = write_random_bundle(model, folder / name, "flat" if args.half else "rows")
    # All that may help: on a CPU the threads wait for one another awake, on a GPU small batches are replayed.
    ours = OnnxEngine(bundle, args.threads, spin=not args.half, capture_graphs=args.half)
    engines: dict[str, Run] = {OURS: lambda texts: np.concatenate(ours.run(texts).texts)}
    for compiled in (False, True) if args.compile else (False,):
        engines[COMPILED if compiled else PADDED] = PaddedTorch(
            random_model(name), args.device, half=args.half, compiled=compiled
        )
    return engines, config


def measured(
    engines: dict[str, Run],
    config: BertConfig,
    texts: Sequence[Encoding],
    batch_tokens: int,
    rounds: int,
    peak: float,
) -> dict[str, Rate]:
    """Let the engines take turns on all batches, round after round; the first round only warms up."""
    batches, work = in_batches(texts, batch_tokens), flops(config, texts)
    tokens = sum(map(len, texts))
    answers = {name: [run(batch) for batch in batches] for name, run in engines.items()}
    taken = seconds_in_turns({name: partial(_on_each, run, batches) for name, run in engines.items()}, rounds)
    first = np.concatenate(next(iter(answers.values())))
    return {
        name: Rate(
            tokens / statistics.median(seconds),
            work / statistics.median(seconds) / peak,
            float(np.abs(np.concatenate(answers[name]) - first).max() / np.abs(first).max()),
        )
        for name, seconds in taken.items()
    }


def table(model: str, lengths: str, rates: dict[str, Rate]) -> list[str]:
    """Return a row for each engine."""
    padded = rates[PADDED]
    return [
        f"| {model} | {lengths} | {name} | {rate.tokens_per_s:,.0f} | {rate.tokens_per_s / padded.tokens_per_s:.2f} | "
        f"{rate.share:.2f} | {rate.apart:.0e} |"
        for name, rate in rates.items()
    ]


def alone(engines: dict[str, Run], rounds: int) -> list[str]:
    """Return each engine's median and p99 for a short text, in milliseconds."""
    (text,) = random_texts(str(LONE_TOKENS), LONE_TOKENS)
    taken = seconds_in_turns(
        {name: partial(run, [text]) for name, run in engines.items()}, max(20, 20 * rounds)
    )
    times_ms = [1000 * np.array(times[3:]) for times in taken.values()]
    return [f"{np.median(times):.2f}, {np.quantile(times, 0.99):.2f}" for times in times_ms]


def _on_each(run: Run, batches: Sequence[Sequence[Encoding]]) -> None:
    for batch in batches:
        run(batch)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu else "cpu")
    parser.add_argument("--models", nargs="+", choices=sorted(BERT_SHAPES), default=["minilm"])
    parser.add_argument("--lengths", nargs="+", default=[MIXED, "128", "384"], help=f"{MIXED}, or a number")
    parser.add_argument("--batch-tokens", type=int, default=0, help="by default 512 on a CPU, 32768 on a GPU")
    parser.add_argument("--tokens", type=int, default=0, help="of all texts: by default 8 batches")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of the CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile too, where all texts have one length"
    )
    parser.add_argument("--trace", type=Path, help="folder for a timeline of one batch of each model")
    args = parser.parse_args(arguments)
    args.half = args.device == "cuda"
    args.batch_tokens = args.batch_tokens or (32_768 if args.half else 512)
    args.tokens = args.tokens or 8 * args.batch_tokens
    return args


def _gpu(device: str) -> str:
    return f", {torch.cuda.get_device_name()}" if device == "cuda" else ""


if __name__ == "__main__":
    sys.exit(main())
