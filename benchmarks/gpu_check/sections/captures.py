"""Small batches with and without captured CUDA graphs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.common import seconds_in_turns
from benchmarks.engine.shapes import random_model, write_random_bundle
from benchmarks.engine.texts import LONGEST, random_texts
from benchmarks.gpu_check.check import Check
from bert.encoding import Encoding
from service.cpu_count import usable_cores
from service.engine.cuda_graphs import BatchShape, shapes
from service.engine.onnx_engine import OnnxEngine


def run(check: Check) -> None:
    """Time each shape with texts that fill it."""
    if not check.has_engine:
        check.record.skip("this onnxruntime has no CUDA")
        return
    if not check.on_gpu:
        check.record.note("There are no captured graphs on a CPU: both columns are the same engine.")
    for name in check.pick(("base", "minilm"), ("tiny",)):
        with check.record.step(name), TemporaryDirectory(dir=check.folder) as folder:
            _model(check, name, Path(folder))


def _model(check: Check, name: str, folder: Path) -> None:
    bundle = write_random_bundle(random_model(name), folder / name, "flat" if check.on_gpu else "rows")
    plain = OnnxEngine(bundle, usable_cores(), spin=not check.on_gpu)
    captured = OnnxEngine(bundle, usable_cores(), spin=not check.on_gpu, capture_graphs=True)
    used = captured.captured_shapes
    known = shapes(check.pick(LONGEST, 64))
    check.record.note(f"{name}: {len(used)} of {len(known)} shapes are used.")
    for shape in known:
        texts = _filling(shape)
        runs = {"captured": lambda: captured.run(texts), "plain": lambda: plain.run(texts)}  # noqa: B023
        times = {
            kind: 1000 * median(found) for kind, found in seconds_in_turns(runs, check.pick(30, 2)).items()
        }
        check.record.row(
            "captures",
            model=name,
            tokens=shape.tokens,
            texts=len(texts),
            used=shape in used,
            **{f"{kind}, ms": round(found, 3) for kind, found in times.items()},
            times=round(times["plain"] / times["captured"], 2),
            apart=f"{_apart(captured, plain, texts):.0e}",
        )


def _filling(shape: BatchShape) -> list[Encoding]:
    """Return as many texts as the shape takes beside one of padding, of nearly as many tokens."""
    texts = shape.texts - 1
    length = (shape.tokens - 1) // texts
    return random_texts(str(length), texts * length)


def _apart(first: OnnxEngine, second: OnnxEngine, texts: Sequence[Encoding]) -> float:
    """Return the largest difference of an output, over its largest."""
    a, b = (np.concatenate(engine.run(texts).texts) for engine in (first, second))
    return float(np.abs(a - b).max() / np.abs(b).max())
