"""The answers that a bundle carries, asked where it was made."""

from pathlib import Path

import pytest

from bert.tokenizer import Tokenizer
from model_export.export import export
from model_export.verify.parity import Tolerance
from service.engine.bundle_loader import check
from service.engine.onnx_engine import OnnxEngine
from tests.support.checkpoints import SPECS, write_checkpoint


@pytest.mark.parametrize(
    ("task", "precision"),
    [
        *((task, "int8") for task in SPECS),
        *((task, "fp32") for task in ("classification", "qa", "similarity")),
    ],
)
def test_a_bundle_passes_its_own_test(task: str, precision: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny", SPECS[task])
    bundle = export(
        tmp_path / "tiny",
        tmp_path / "b",
        precision,
        tolerance_of=lambda precision: Tolerance.of(precision, same_labels=0.5),
    )
    check(bundle, Tokenizer.load(bundle.tokenizer_path), OnnxEngine(bundle, threads=1))
