"""How the machine is divided and measured by what its models run on."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.manifest import SHA256, own_sha256
from bert.tokenizer import Encoding, Tokenizer
from service.autotune.cost_curve import Plan
from service.autotune.warmup import CURVE_TOKENS, measure_curve, planned
from service.engine.model_registry import OpenedModel, all_on_gpu
from service.engine.onnx_engine import CPU, CUDA, OnnxEngine, Outputs
from service.settings import ServeSettings


class InstantEngine:
    """Answers at once, and notes the largest batch."""

    most = 0

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.most = max(self.most, sum(map(len, encodings)))
        return Outputs([np.zeros((1, 2), np.float32)] * len(encodings), 0.0)


def made_for_gpu(bundle: Path, folder: Path) -> Path:
    """Copy a bundle whose manifest says that it runs on a GPU."""
    shutil.copytree(bundle, folder)
    file = folder / "bundle.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) | {"layout": "flat", "precision": "fp16"}
    manifest["session"] = {**manifest["session"], "providers": [CUDA]}
    manifest[SHA256] = own_sha256(manifest)
    file.write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def test_a_gpu_is_divided_only_where_all_models_are_for_it(bundles: Path, tmp_path: Path) -> None:
    on_cpu, on_gpu = bundles / "mood", made_for_gpu(bundles / "mood", tmp_path / "gpu")
    assert all_on_gpu([on_gpu]) and not all_on_gpu([on_cpu]) and not all_on_gpu([on_gpu, on_cpu])
    assert planned(ServeSettings(bundles=[on_gpu]), 16) == Plan(2, 1)
    assert planned(ServeSettings(bundles=[on_gpu, on_cpu]), 16) == Plan(16, 1)
    assert planned(ServeSettings(bundles=[on_gpu], engine_slots=3), 16) == Plan(3, 1)


@pytest.mark.parametrize("provider", [CPU, CUDA])
def test_batches_are_tried_up_to_what_keeps_the_device_busy(bundles: Path, provider: str) -> None:
    bundle, engine = read_bundle(bundles / "mood"), InstantEngine(provider)
    model = OpenedModel(bundle, b"", Tokenizer.load(bundle.tokenizer_path), engine=cast(OnnxEngine, engine))
    curve = measure_curve(model, Plan(2, 1), seconds=60.0)
    assert engine.most == curve[-1].tokens == CURVE_TOKENS[provider]
    assert measure_curve(model, Plan(2, 1), 60.0, given=128)[-1].tokens == 128
