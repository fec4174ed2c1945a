"""Slots and measurements by the provider of the models."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.manifest import CPU, CUDA, SHA256, own_sha256
from bert.packing import CostModel
from bert.tokenizer import Encoding, Tokenizer
from service.engine.bundle_folders import all_on_gpu, find_bundles
from service.engine.measure import CURVE_TOKENS, measure_curve
from service.engine.models import OpenedModel, Outputs
from service.engine.slot_layout import SlotLayout, slot_layout
from service.settings import ServeSettings


class InstantEngine:
    """Returns at once, and records the largest batch."""

    largest = 0

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.largest = max(self.largest, sum(map(len, encodings)))
        return Outputs([np.zeros((1, 2), np.float32)] * len(encodings), 0.0)

    def set_cost(self, cost: CostModel) -> None:
        raise NotImplementedError


def made_for_gpu(bundle: Path, folder: Path) -> Path:
    """Copy a bundle whose manifest says that it runs on a GPU."""
    shutil.copytree(bundle, folder)
    file = folder / "bundle.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) | {"layout": "flat", "precision": "fp16"}
    manifest["session"] = {**manifest["session"], "providers": [CUDA]}
    manifest[SHA256] = own_sha256(manifest)
    file.write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def test_a_gpu_is_divided_only_if_all_models_are_for_it(bundles: Path, tmp_path: Path) -> None:
    on_cpu, on_gpu = bundles / "mood", made_for_gpu(bundles / "mood", tmp_path / "gpu")
    gpu, cpu, both = (find_bundles(paths) for paths in ([on_gpu], [on_cpu], [on_gpu, on_cpu]))
    assert all_on_gpu(gpu) and not all_on_gpu(cpu) and not all_on_gpu(both)
    assert slot_layout(ServeSettings(), 16, gpu) == SlotLayout(2, 1)
    assert slot_layout(ServeSettings(), 16, both) == SlotLayout(16, 1)
    assert slot_layout(ServeSettings(engine_slots=3), 16, gpu) == SlotLayout(3, 1)


@pytest.mark.parametrize("provider", [CPU, CUDA])
def test_batches_are_timed_up_to_the_size_that_keeps_the_device_busy(
    bundles: Path, tmp_path: Path, provider: str
) -> None:
    folder = bundles / "mood" if provider == CPU else made_for_gpu(bundles / "mood", tmp_path / "gpu")
    bundle, engine = read_bundle(folder), InstantEngine()
    model = OpenedModel(bundle, b"", Tokenizer.load(bundle.tokenizer_path), engine=engine)
    curve = measure_curve(model, SlotLayout(2, 1), seconds=60.0)
    assert engine.largest == curve[-1].tokens == CURVE_TOKENS[provider]
    assert measure_curve(model, SlotLayout(2, 1), 60.0, batch_tokens=128)[-1].tokens == 128
