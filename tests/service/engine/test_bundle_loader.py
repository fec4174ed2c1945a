"""Bundles become models only if their parts belong together."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import Bundle, read_bundle
from bert.errors import BundleError
from bert.manifest import SHA256, own_sha256
from bert.tasks.spec import TaskSpec
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader, opened
from service.engine.cost_curve import knee
from service.engine.measure import measure
from service.engine.models import OpenedModel
from service.engine.onnx_engine import OnnxEngine
from service.engine.slot_layout import SlotLayout
from service.workers.scheduled_models import fit_throughput
from tests.support.tiny import SPECS, write_tiny_bundle


def load(folder: Path) -> list[OpenedModel]:
    return opened(BundleLoader(find_bundles([folder]), threads=1).load(1))


def test_a_tokenizer_with_more_pieces_than_the_model_knows_is_refused(bundles: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mood"
    shutil.copytree(bundles / "mood", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["surplus"] = len(vocabulary)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    manifest = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    manifest["files"]["tokenizer.json"] = digest
    manifest[SHA256] = own_sha256(manifest)
    (folder / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
    known = read_bundle(folder).manifest.vocab_size
    with pytest.raises(BundleError, match=f"has ids up to {known}, and the model has {known} pieces"):
        load(folder)


def test_a_graph_that_is_replaced_between_check_and_use_is_refused(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mood"
    shutil.copytree(bundles / "mood", folder)

    class Replaced(OnnxEngine):
        def __init__(self, bundle: Bundle, threads: int, **others: Any) -> None:
            shutil.copy(bundle.model_path, tmp_path / "same.onnx")
            (tmp_path / "same.onnx").replace(bundle.model_path)
            super().__init__(bundle, threads, **others)

    monkeypatch.setattr("service.engine.bundle_loader.OnnxEngine", Replaced)
    with pytest.raises(BundleError, match="was changed while it was loaded"):
        load(folder)


@pytest.mark.parametrize("task", sorted({spec.task for spec in SPECS.values()}))
def test_a_model_of_16_positions_is_measured_with_texts_that_it_can_read(tmp_path: Path, task: str) -> None:
    labels = ("O", "B-X") if task in ("classification", "ner") else ()
    write_tiny_bundle(tmp_path / "short", "short", TaskSpec(task, labels, max_tokens=16), 0, positions=16)
    models = load(tmp_path)
    (measured,) = measure(models, SlotLayout(1, 1)).values()
    curve = measured.curve
    speed = fit_throughput(curve, knee(curve), 1)
    assert speed.budget >= 64 and speed.tokens_per_s > 0
