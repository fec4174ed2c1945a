"""Speed and error of the forms that the exporter could write, side by side, on one machine.

python -m benchmarks.engine.export_precisions models/sentiment

For each form: milliseconds a batch of (rows, tokens a row) holds, the relative error of its scores against the
checkpoint on the texts shipped with bert-export, and the largest change of a score when other texts join the batch.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common.machine import machine_line
from bert.checkpoint.tensor_names import Weights
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.config import BertConfig
from bert.graph_inputs import Ints
from bert.manifest import CPU
from bert.runtime import open_session, session_options
from model_export.graph.bert_graph import build_graph
from model_export.graph.calibration import calibrate
from model_export.graph.cpu_ops import CpuOps
from model_export.graph.graph_builder import MICROSOFT, GraphWriter
from model_export.graph.int8_ops import Int8Ops
from model_export.graph.rounding import round_weight
from model_export.reference import Floats, Reference
from model_export.verify.parity import references
from model_export.verify.precision import GraphSession, packer_for
from model_export.verify.texts import CALIBRATING, EncodedText, sentences, shipped_texts

SHAPES = ((1, 16), (1, 64), (8, 128))
TEXT_TOKENS = 32
BLOCK = 32


class NBitsOps(CpuOps):
    """Linear layers as MatMulNBits, 8 bits, 32 weights a scale."""

    def _linear(self, x: str, name: str) -> str:
        weight = self.weights[f"{name}.weight"]  # (out, in)
        outputs, inputs = weight.shape
        blocks = weight.reshape(outputs, inputs // BLOCK, BLOCK)
        scale = np.abs(blocks).max(axis=-1) / 127
        quantised = (np.rint(blocks / scale[..., None]) + 128).astype(np.uint8)
        return self.w.node(
            "MatMulNBits",
            x,
            self.w.constant(f"{name}.quantised", quantised),
            self.w.constant(f"{name}.scales", scale.astype(np.float32)),
            *("", "", self.tensor(f"{name}.bias")),
            domain=MICROSOFT,
            K=inputs,
            N=outputs,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,
        )


class PerTensorOps(CpuOps):
    """Linear layers as DynamicQuantizeMatMul: one activation scale for the whole batch."""

    def _linear(self, x: str, name: str) -> str:
        weight = self.weights[f"{name}.weight"].T
        scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
        return self.w.node(
            "DynamicQuantizeMatMul",
            x,
            self.w.constant(f"{name}.quantised", np.rint(weight / scale).astype(np.int8)),
            self.w.constant(f"{name}.scales", scale),
            *("", self.tensor(f"{name}.bias")),
            domain=MICROSOFT,
        )


class NearestInt8Ops(Int8Ops):
    """The written form with each weight rounded to the nearest level, whatever it is multiplied with."""

    def _rounded(self, linear: Any) -> Any:
        scale = (np.abs(linear.weight).max(axis=0) / 127).astype(np.float32)
        return np.rint(linear.weight / scale).astype(np.int8), scale


class WeaklySmoothedInt8Ops(Int8Ops):
    """The written form with as much smoothing for fixed scales as for the others."""

    fixed_smoothing = Int8Ops.smoothing


class AllLevelsOps(Int8Ops):
    """The written form with weights on 127 levels, pairs of which saturate on processors without VNNI."""

    def _rounded(self, linear: Any) -> Any:
        return round_weight(linear.weight, linear.inputs, 127, 254)


class FewLevelsOps(Int8Ops):
    """The written form with weights on 63 levels, which never saturate either."""

    def _rounded(self, linear: Any) -> Any:
        return round_weight(linear.weight, linear.inputs, 63, 126)


class FusedOps(CpuOps):
    """The operators that fuse most, as on CUDA: SkipLayerNormalization and BiasGelu."""

    def intermediate(self, x: str, name: str) -> str:
        """Write x W, and its bias inside the activation."""
        weight = self.w.constant(f"{name}.weight.T", self.weights[f"{name}.weight"].T)
        return self.w.node(
            "BiasGelu", self.w.node("MatMul", x, weight), self.tensor(f"{name}.bias"), domain=MICROSOFT
        )

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write x W, and the rest as one operator."""
        weight = self.w.constant(f"{dense}.weight.T", self.weights[f"{dense}.weight"].T)
        return self.w.node(
            "SkipLayerNormalization",
            self.w.node("MatMul", x, weight),
            residual,
            *self.norm_parameters(norm),
            self.tensor(f"{dense}.bias"),
            domain=MICROSOFT,
            epsilon=self.config.layer_norm_eps,
        )


Make = Callable[[GraphWriter, BertConfig, Weights], CpuOps]


def forms(checkpoint: Checkpoint, texts: list[EncodedText]) -> dict[str, Make]:
    """Return what is compared, by name."""
    shipped = sentences(checkpoint.tokenizer, checkpoint.spec)
    encodings = [text.encoding for text in [*texts[::2], *shipped[: len(shipped) // CALIBRATING]]]
    calibration = calibrate(checkpoint.config, checkpoint.spec, checkpoint.weights, encodings)
    return {
        "fp32 (written)": CpuOps,
        "fp32, SkipLayerNormalization and BiasGelu": FusedOps,
        "int8, MatMulNBits": NBitsOps,
        "int8, one scale for the batch": PerTensorOps,
        "int8 (written)": partial(Int8Ops, calibration=calibration),
        "int8, the written form with weights rounded to the nearest": partial(
            NearestInt8Ops, calibration=calibration
        ),
        "int8, the written form on 127 levels": partial(AllLevelsOps, calibration=calibration),
        "int8, the written form on 63 levels": partial(FewLevelsOps, calibration=calibration),
        "int8, the written form with smoothing 0.5": partial(WeaklySmoothedInt8Ops, calibration=calibration),
    }


def feeds(rows: int, tokens: int) -> dict[str, Ints]:
    """Return a full batch of texts of TEXT_TOKENS tokens (or one shorter one)."""
    place = np.arange(rows * tokens, dtype=np.int32)
    length = min(TEXT_TOKENS, tokens)
    shape = (rows, tokens)
    ids = np.random.default_rng(0).integers(1000, 20000, shape).astype(np.int32)
    return {
        "input_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "position_ids": (place % length).reshape(shape),
        "text_ids": (place // length).reshape(shape),
        "positions": place[::length],
    }


def milliseconds(
    models: list[onnx.ModelProto], batch: dict[str, Ints], threads: int, rounds: int
) -> list[float]:
    """Return each model's median time of a batch; they take turns, so that a busy moment slows all of them."""
    options = session_options(threads, "rows")
    sessions = [open_session(model.SerializeToString(), CPU, options) for model in models]
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(rounds + 2):
        for session, taken in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, batch)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[2:]) * 1000 for taken in times]


def distances(runner: GraphSession, texts: list[EncodedText], expected: list[Floats]) -> tuple[float, float]:
    """Return the relative error against the checkpoint, and the largest change that neighbours make."""
    packed, alone = (np.concatenate(run(texts)) for run in (runner.packed, runner.alone))
    reference = np.concatenate(expected)
    return (
        float(np.linalg.norm(packed - reference) / np.linalg.norm(reference)),
        float(np.abs(packed - alone).max()),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30, help="batches of each form and shape")
    arguments = parser.parse_args()
    checkpoint = read_checkpoint(arguments.checkpoint)
    texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)
    expected = references(Reference(checkpoint.config, checkpoint.spec, checkpoint.weights), texts)
    print(f"{machine_line('onnxruntime')}, {arguments.threads} thread(s)")
    print(f"$ python -m benchmarks.engine.export_precisions {' '.join(sys.argv[1:])}\n")
    heads = [f"ms at {rows} x {tokens}" for rows, tokens in SHAPES]
    print(f"| form | {' | '.join(heads)} | relative error | neighbours change | MB |")
    print("|---" * (len(heads) + 4) + "|")
    models, far = {}, {}
    for name, make in forms(checkpoint, texts).items():
        models[name] = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, make)
        by_token = isinstance(make, partial)
        packer = packer_for(checkpoint.config, "int8" if by_token else "fp32")
        far[name] = distances(GraphSession(models[name], packer, arguments.threads), texts, expected)
    built = list(models.values())
    columns = [milliseconds(built, feeds(*shape), arguments.threads, arguments.rounds) for shape in SHAPES]
    for row, (name, model) in enumerate(models.items()):
        error, change = far[name]
        cells = [f"{column[row]:.1f}" for column in columns]
        cells += [f"{error:.4f}", f"{change:.0e}", f"{model.ByteSize() / 2**20:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
