"""Our graphs beside OpenVINO and CTranslate2 on the same weights: one thread, no HTTP. Milliseconds of a batch.

    make bench-compare        # or benchmarks/serving/README.md: the environment .venv-bench
    .venv-bench/bin/pip install openvino ctranslate2
    .venv-bench/bin/python -m benchmarks.serving.baselines.other_engines models/sentiment fp32/sentiment int8/sentiment

Texts of one length, then batches of mixed lengths. Our engine packs those; the others get them sorted and cut into groups
of like lengths, as the tuned servers do. Nothing is timed before all answers are near the checkpoint's. The engines take
turns. The best of the rounds counts: what else runs on the machine makes a run slower, never faster. N texts, K labels.
"""

import argparse
import importlib
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.machine import machine_line
from benchmarks.common.timing import seconds_in_turns
from benchmarks.engine.texts import as_text
from benchmarks.serving.baselines.padded import groups
from benchmarks.serving.baselines.plain_checkpoint import CACHE, export_standard, is_written, write_plain
from benchmarks.serving.load.texts import made_up_texts
from bert.bundle import read_bundle
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.encoding import Encoding
from bert.processor import instructions
from model_export.reference import Reference
from service.engine.onnx_engine import OnnxEngine

SHAPES = ((1, 16), (1, 32), (8, 32), (8, 128))
"""Texts and their tokens."""
MIXED_TEXTS = 12
"""Texts in a batch of mixed lengths."""
MAX_ERROR, MAX_ERROR_FLOAT32 = 0.15, 1e-3
"""Largest allowed errors, relative to the norm of all logits. Unmasked padding gives 0.24, a layer left out 0.95."""

Batch = Sequence[Encoding]
Floats = NDArray[np.float32]
Run = Callable[[], Floats]
"""Returns the logits (N, K) of one batch."""
Prepare = Callable[[Batch], Run]
"""Does once what need not be timed, such as compiling for the batch's shape."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    checkpoint = read_checkpoint(args.checkpoint)
    if checkpoint.spec.task != "classification":
        raise SystemExit(f"{args.checkpoint} is for {checkpoint.spec.task}; only classifiers are compared")
    engines = {}
    for folder in args.bundles:
        bundle = read_bundle(folder, verify_hashes=False)
        engines[f"ours, {bundle.manifest.precision}"] = ours(OnnxEngine(bundle, 1))
    if args.engines:
        packages = {name: import_engine(name) for name in args.engines}
        if not is_written(checkpoint, args.plain):
            write_plain(checkpoint, args.plain)
        for name in args.engines:
            engines |= OTHERS[name](packages[name], checkpoint, args.plain)
    print(machine_line("onnxruntime", *args.engines))
    command = shlex.join(arguments or sys.argv[1:])
    print(f"Command: python -m benchmarks.serving.baselines.other_engines {command}\n")
    measure(engines, batches(checkpoint, args.shapes, args.mixed), checkpoint, args.rounds)
    return 0


def measure(
    engines: Mapping[str, Prepare], cases: Mapping[str, Batch], checkpoint: Checkpoint, rounds: int
) -> None:
    """Print best and median of each batch, and the errors. Raises SystemExit, untimed, if an engine answers otherwise."""
    runs = {
        case: {name: prepare(batch) for name, prepare in engines.items()} for case, batch in cases.items()
    }
    right = np.concatenate([logits(checkpoint, batch) for batch in cases.values()])
    apart = {name: error(np.concatenate([runs[case][name]() for case in cases]), right) for name in engines}
    wrong = [name for name, found in apart.items() if not found <= max_error(name)]
    if wrong:
        raise SystemExit(
            "too far from the checkpoint: " + ", ".join(f"{name} by {apart[name]:.2g}" for name in wrong)
        )
    print("| best (median), ms | " + " | ".join(engines) + " |\n|---|" + "---|" * len(engines))
    for case in cases:
        found = seconds_in_turns(runs[case], rounds)
        cells = [f"{1000 * min(each):.2f} ({1000 * statistics.median(each):.2f})" for each in found.values()]
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)
    print("| relative error of the logits | " + " | ".join(f"{each:.1e}" for each in apart.values()) + " |")


def batches(checkpoint: Checkpoint, shapes: Sequence[tuple[int, int]], mixed: int) -> dict[str, Batch]:
    """Return batches of random ids in these shapes, then so many of made-up texts."""
    tokenizer, spec = checkpoint.tokenizer, checkpoint.spec
    found: dict[str, Batch] = {}
    for texts, tokens in shapes:
        ids = np.random.default_rng(0).integers(checkpoint.config.vocab_size, size=(texts, tokens))
        found[f"{texts} x {tokens}"] = [as_text(row) for row in ids.astype(np.int32)]
    for number in range(mixed):
        pieces = tokenizer.pieces(made_up_texts(MIXED_TEXTS, seed=number))
        batch = [tokenizer.single(each, spec.max_tokens, truncate=True) for each in pieces]
        lengths = [len(text) for text in batch]
        found[f"{MIXED_TEXTS} of {min(lengths)} to {max(lengths)}, {sum(lengths)} in all"] = batch
    return found


def logits(checkpoint: Checkpoint, batch: Batch) -> Floats:
    """Return the checkpoint's own logits (N, K), each text alone in plain numpy."""
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    first = np.zeros(1, np.intp)
    return np.concatenate([reference.outputs(text.ids, text.segment_ids, first) for text in batch])


def error(given: Floats, right: Floats) -> float:
    """Return the norm of the difference relative to the norm of `right`."""
    return float(np.linalg.norm(given - right) / np.linalg.norm(right))


def max_error(name: str) -> float:
    """Return the largest allowed error of an engine, whose name ends with its precision."""
    return MAX_ERROR_FLOAT32 if name.endswith("32") else MAX_ERROR


def ours(engine: OnnxEngine) -> Prepare:
    """Return our engine, which packs a batch in each run."""
    return lambda batch: lambda: np.concatenate(engine.run(batch).texts)


def openvino(package: Any, checkpoint: Checkpoint, folder: Path) -> dict[str, Prepare]:
    """Return OpenVINO's float32 and bfloat16, compiled for each shape."""
    if not (folder / "model.onnx").is_file():
        export_standard(folder, sys.executable)
    core = package.Core()

    def compiled(precision: str, batch: Batch) -> Run:
        model = core.read_model(folder / "model.onnx")
        width = max(map(len, batch))
        ids, mask = np.zeros((2, len(batch), width), np.int64)
        for row, text in enumerate(batch):
            ids[row, : len(text)], mask[row, : len(text)] = text.ids, 1
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        inputs = {node.any_name: values[node.any_name] for node in model.inputs}
        model.reshape({name: list(value.shape) for name, value in inputs.items()})
        hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        request = core.compile_model(model, "CPU", hints).create_infer_request()
        return lambda: np.asarray(request.infer(inputs)[0])

    return {f"OpenVINO, {kind}": grouped(partial(compiled, kind)) for kind in ("f32", "bf16")}


def ctranslate2(package: Any, checkpoint: Checkpoint, folder: Path) -> dict[str, Prepare]:
    """Return CTranslate2's float32 and int8, with the classifier that it leaves to its caller."""
    converted = folder / CACHE / "ctranslate2"
    if not (converted / "model.bin").is_file():
        package.converters.TransformersConverter(str(folder)).convert(str(converted), force=True)
    weight, bias = (checkpoint.weights[f"classifier.{part}"] for part in ("weight", "bias"))

    def opened(kind: str) -> Prepare:
        encoder = package.Encoder(str(converted), compute_type=kind, inter_threads=1, intra_threads=1)

        def prepare(batch: Batch) -> Run:
            ids = [text.ids.tolist() for text in batch]
            return lambda: np.asarray(encoder.forward_batch(ids).pooler_output) @ weight.T + bias

        return grouped(prepare)

    return {f"CTranslate2, {kind}": opened(kind) for kind in ("float32", "int8")}


OTHERS = {"openvino": openvino, "ctranslate2": ctranslate2}


def grouped(prepare: Prepare) -> Prepare:
    """Return an engine that runs a batch group by group; texts of one length, eight at most, are one group."""

    def prepared(batch: Batch) -> Run:
        parts = groups([len(text) for text in batch])
        runs = [prepare([batch[number] for number in part]) for part in parts]
        order = np.argsort(np.concatenate(parts))
        return lambda: np.concatenate([run() for run in runs])[order]

    return prepared


def import_engine(name: str) -> Any:
    """Import an engine's package; raises SystemExit where it is not installed."""
    if name == "ctranslate2" and "avx512" in instructions():
        # It takes AVX2 on processors that are not Intel's, which is up to 15% slower. Read when it is imported.
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise SystemExit(
            f"{name} cannot be imported ({problem}): pip install {name}, in an environment of its own as "
            "benchmarks/serving/README.md says, or leave it out of --engines"
        ) from problem


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="a classifier, which the bundles were made from")
    add("bundles", type=Path, nargs="+")
    add(
        "--engines", choices=list(OTHERS), nargs="*", default=list(OTHERS), help="beside ours; by default all"
    )
    add("--shapes", type=_shape, nargs="*", default=list(SHAPES), help="like 8x32")
    add("--mixed", type=int, default=3, help=f"batches of {MIXED_TEXTS} texts of mixed lengths")
    add("--rounds", type=int, default=30)
    add("--core", type=int, default=-1, help="to stay on; by default any")
    add(
        "--plain",
        type=Path,
        default=Path("runs/compare/model"),
        help="folder for the form that the others load",
    )
    return parser.parse_args(arguments)


def _shape(value: str) -> tuple[int, int]:
    texts, _, tokens = value.partition("x")
    return int(texts), int(tokens)


if __name__ == "__main__":
    sys.exit(main())
