"""8 bits of a GLiNER whose labels have an encoder of their own, and the self-test of its bundle."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from bert.bundle import FALLBACK, LABELS_FALLBACK, LABELS_MODEL, MODEL, Bundle, read_bundle, write_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.errors import BundleError
from bert.self_test import SELF_TEST, SelfTest
from model_export.cli import main
from model_export.verify.label_encoder import LabelEncoder
from model_export.verify.parity import Tolerance
from model_export.verify.verified_graph import ExportContext
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from service.engine.models import OpenedModel
from tests.support.open_ner import write_bi_gliner

FAST = {"fp32": {"1 x 32": 2.0}, "int8": {"1 x 32": 1.0}}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """8 bits with the float32 graphs beside them, of texts and of labels."""
    folder = tmp_path_factory.mktemp("bi")
    write_bi_gliner(folder / "m")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("model_export.verify.auto_precision.time_graphs", lambda *_: FAST)
        patched.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
        arguments = ["--checkpoint", str(folder / "m"), "--out", str(folder / "b"), "--tolerance-labels", "0"]
        assert main(arguments) == 0
    bundle = read_bundle(folder / "b")
    assert {MODEL, FALLBACK, LABELS_MODEL, LABELS_FALLBACK} <= set(bundle.manifest.files)
    return bundle


def load(bundle: Bundle) -> OpenedModel:
    model = BundleLoader(find_bundles([bundle.folder]), threads=1).load(1)[bundle.folder]
    assert isinstance(model, OpenedModel)
    return model


def damaged(bundle: Bundle, folder: Path, *graphs: str) -> Bundle:
    """Write the bundle anew with other weights in the last layer of some graphs."""
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    for name in graphs:
        model = onnx.load_from_string(files[name])
        last = [each for each in model.graph.initializer if each.name.startswith("dense.")][-1]
        values = onnx.numpy_helper.to_array(last)
        last.CopyFrom(onnx.numpy_helper.from_array(values + values.dtype.type(0.1), last.name))
        files[name] = model.SerializeToString()
    return write_bundle(folder / "bundle", bundle.manifest, files)


def test_both_graphs_in_8_bits_pass(exported: Bundle) -> None:
    assert load(exported).why_fallback == ""


def test_labels_are_read_in_float32_where_8_bits_give_other_vectors(exported: Bundle, tmp_path: Path) -> None:
    model = load(damaged(exported, tmp_path, LABELS_MODEL))
    assert "labels.onnx (int8) gives different outputs on this processor" in model.why_fallback
    assert model.bundle.graph == MODEL


def test_a_bundle_whose_labels_are_read_otherwise_is_left_out(exported: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"labels_fallback.onnx \(fp32\) gives different outputs"):
        load(damaged(exported, tmp_path, LABELS_MODEL, LABELS_FALLBACK))


def test_of_a_bi_encoder_both_graphs_are_in_8_bits(tmp_path: Path) -> None:
    write_bi_gliner(tmp_path / "m")
    arguments = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "int8"]
    assert main([*arguments, "--tolerance-labels", "0"]) == 0  # the model is random
    bundle = read_bundle(tmp_path / "b")
    assert bundle.labels is not None and bundle.labels.fallback is None
    for manifest in (bundle.manifest, bundle.labels.manifest):
        assert manifest.precision == "int8" and 1e-4 < manifest.parity["relative_error"] < 0.1
        assert manifest.fused_operators["com.microsoft.MatMulIntegerToFloat"] > 10
    assert bundle.manifest.parity["entities"] > 1000 and bundle.manifest.parity["changed_entities"] > 0
    assert bundle.manifest.parity["neighbours_difference"] == 0.0
    answers = SelfTest.parse(bundle.read(SELF_TEST)).answers
    assert set(answers) == {MODEL, LABELS_MODEL} and answers[LABELS_MODEL][0].shape == (1, 24)


def test_a_graph_in_8_bits_is_judged_with_vectors_of_8_bits(tmp_path: Path) -> None:
    write_bi_gliner(tmp_path / "m")
    checkpoint = read_checkpoint(tmp_path / "m")
    assert checkpoint.labels is not None
    labels = LabelEncoder(checkpoint.labels, Tolerance.of)
    context = ExportContext(checkpoint, few_texts=True, vectors_of=labels.vectors)
    graph = context.float32
    before = np.concatenate(graph.packed(context.texts))
    graph.label_vectors = context.vectors_in("int8")
    differences = np.abs(before - np.concatenate(graph.packed(context.texts)))
    assert 1e-3 < differences.max() < 1.0


def test_fp16_of_a_bi_encoder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_bi_gliner(tmp_path / "m")
    arguments = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b")]
    assert main([*arguments, "--precision", "fp16"]) == 1
    assert "fp16 is not built for models whose labels have an encoder of their own" in capsys.readouterr().err
