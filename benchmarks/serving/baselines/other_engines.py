"""Our graphs beside OpenVINO's float32 and bfloat16 on the same weights: one thread, texts of one length, no HTTP.

    pip install openvino
    python -m benchmarks.serving.baselines.export_onnx FOLDER     # as benchmarks.serving.compare does: OUT/model
    python -m benchmarks.serving.baselines.other_engines FOLDER/model.onnx fp32/sentiment int8/sentiment

The engines take turns, and the best of the rounds counts: what else runs on the machine makes a run slower, never faster.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.timing import least_seconds
from benchmarks.engine.texts import as_text
from bert.bundle import read_bundle
from service.engine.onnx_engine import OnnxEngine

SHAPES = ((1, 16), (1, 32), (8, 32), (8, 128))
"""Texts and their tokens."""
Run = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    bundles = [read_bundle(folder, verify_hashes=False) for folder in args.bundles]
    ours = {f"ours, {b.manifest.precision}": OnnxEngine(b, 1) for b in bundles}
    names = [*ours, "OpenVINO, f32", "OpenVINO, bf16"]
    print("| texts x tokens, ms | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for texts, tokens in args.shapes:
        ids = np.random.default_rng(0).integers(1000, 20_000, (texts, tokens)).astype(np.int32)
        runs: list[Run] = [partial(engine.run, [as_text(row) for row in ids]) for engine in ours.values()]
        runs += [openvino(args.onnx, kind, ids) for kind in ("f32", "bf16")]
        seconds = least_seconds(dict(zip(names, runs, strict=True)), args.rounds)
        best = [1000 * seconds[name] for name in names]
        print(f"| {texts} x {tokens} | " + " | ".join(f"{ms:.2f}" for ms in best) + " |", flush=True)
    return 0


def openvino(onnx: Path, precision: str, ids: Any) -> Run:
    """Return a run of OpenVINO on ids (B, T), compiled for that shape."""
    from openvino import Core  # type: ignore[import-not-found, unused-ignore]

    core = Core()
    model = core.read_model(onnx)
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    inputs = {node.any_name: values[node.any_name].astype(np.int64) for node in model.inputs}
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", hints).create_infer_request()
    return partial(request.infer, inputs)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("onnx", type=Path, help="the plain export that OpenVINO reads")
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--shapes", type=_shape, nargs="+", default=list(SHAPES), help="like 8x32")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--core", type=int, default=-1, help="to stay on; by default any")
    args = parser.parse_args(arguments)
    print(
        f"Command: python -m benchmarks.serving.baselines.other_engines {shlex.join(arguments or sys.argv[1:])}\n"
    )
    return args


def _shape(value: str) -> tuple[int, int]:
    texts, _, tokens = value.partition("x")
    return int(texts), int(tokens)


if __name__ == "__main__":
    sys.exit(main())
