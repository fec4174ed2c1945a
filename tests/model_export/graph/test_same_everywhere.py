"""One checkpoint gives the same 8-bit weights on every processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import SPECS, write_checkpoint

EXPORT = """
import hashlib, sys
from functools import partial
from pathlib import Path
from onnx import numpy_helper
from model_export.graph.build import build_graph
from model_export.graph.calibration import Calibration
from model_export.graph.bert.int8_ops import Int8Ops
from tests.support.checkpoints import checkpoint_and_texts

checkpoint, texts = checkpoint_and_texts(Path(sys.argv[1]))
config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
calibration = Calibration(config, spec, weights, [text.encoding for text in texts])
graph = build_graph(config, spec, weights, partial(Int8Ops, calibration=calibration)).graph
for tensor in sorted(graph.initializer, key=lambda tensor: tensor.name):
    if tensor.name.endswith((".weight.int8", ".scale", ".shift", ".smoothing")):
        print(tensor.name, hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest())
"""


def rounded_with(kernels: str, threads: int, checkpoint: Path) -> list[str]:
    """Return the names and hashes of what is rounded with a processor's kernels and a number of threads of OpenBLAS."""
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, checkpoint],
        env=os.environ | {"OPENBLAS_CORETYPE": kernels, "OPENBLAS_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_kernels_of_two_processors_give_the_same_weights(act: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"], hidden_act=act, hidden_size=192, intermediate_size=384)
    old, new = rounded_with("Nehalem", 1, tmp_path), rounded_with("Haswell", 2, tmp_path)
    assert len(new) > 12
    assert old == new
