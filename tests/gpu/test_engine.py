"""The engine's sessions on a GPU: CUDA is found without torch, and captured graphs give what plain runs give."""

import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
import pytest

from benchmarks.common import seconds_in_turns
from benchmarks.engine.shapes import random_model, write_random_bundle
from benchmarks.engine.texts import LONGEST, random_texts
from bert.encoding import Encoding
from service.engine.cuda_graphs import BatchShape, shapes
from service.engine.onnx_engine import OnnxEngine
from service.system import usable_cores
from tests.support.gpu import ON_GPU, pick

pytestmark = pytest.mark.gpu

LOADING = """
import ctypes, pathlib, sys
import onnxruntime
onnxruntime.preload_dlls()
library = pathlib.Path(sys.argv[1])
ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(library))
"""


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_the_library_of_cuda_loads_without_torch() -> None:
    assert "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", pick(["base", "minilm"], ["tiny"]))
def test_captured_graphs_give_what_plain_runs_give(model: str, tmp_path: Path) -> None:
    bundle = write_random_bundle(random_model(model), tmp_path / model, pick("flat", "rows"))
    plain = OnnxEngine(bundle, usable_cores(), spin=not ON_GPU)
    captured = OnnxEngine(bundle, usable_cores(), spin=not ON_GPU, capture_graphs=True)
    known = shapes(pick(LONGEST, 64))
    assert known
    for shape in known:
        texts = filling(shape)
        runs = {"captured": lambda: captured.run(texts), "plain": lambda: plain.run(texts)}  # noqa: B023
        times = {kind: 1000 * median(found) for kind, found in seconds_in_turns(runs, pick(30, 1)).items()}
        a, b = (np.concatenate(engine.run(texts).texts) for engine in (captured, plain))
        apart = float(np.abs(a - b).max() / np.abs(b).max())
        is_used = shape in captured.captured_shapes
        print(
            f"{model}, {shape}: captured {times['captured']:.3f} ms, plain {times['plain']:.3f} ms, {is_used=}"
        )
        assert apart < 1e-2, shape
    assert bool(captured.captured_shapes) == ON_GPU


def filling(shape: BatchShape) -> list[Encoding]:
    """Return as many texts as the shape takes beside one of padding, of nearly as many tokens."""
    texts = shape.texts - 1
    length = (shape.tokens - 1) // texts
    return random_texts(str(length), texts * length)
