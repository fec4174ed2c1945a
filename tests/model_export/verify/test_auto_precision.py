"""`--precision auto`: int8 where it is near enough and faster, else fp32, and the manifest says why."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from bert.bundle import FALLBACK, MODEL, read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.errors import ExportError
from bert.graph_inputs import Packer
from bert.manifest import Manifest
from bert.self_test import SELF_TEST, SelfTest
from model_export.cli import main
from model_export.demo import is_current
from model_export.reference import Floats
from model_export.verify.agreement import Changes
from model_export.verify.auto_precision import Times
from model_export.verify.precision import EXPORTERS, Fp16, Fp32, GraphSession
from model_export.verify.texts import EncodedText
from model_export.verify.verified_graph import ExportContext
from tests.support.checkpoints import SPECS, dev_file, write_checkpoint

FAST: Times = {"fp32": {"1 x 32": 4.0, "8 x 64": 60.0}, "int8": {"1 x 32": 2.0, "8 x 64": 30.0}}
SLOW: Times = {"fp32": {"1 x 32": 4.0, "8 x 64": 60.0}, "int8": {"1 x 32": 4.0, "8 x 64": 59.0}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_checkpoint(folder, SPECS["classification"])
    return folder


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Times], None]:
    """Put times in place of those that are measured: tiny graphs are as fast as one another."""

    def put(times: Times) -> None:
        monkeypatch.setattr("model_export.verify.auto_precision.time_graphs", lambda *_: times)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    return put


def run(checkpoint: Path, out: Path, *more: str) -> Manifest:
    assert main(["--checkpoint", str(checkpoint), "--out", str(out), *more]) == 0
    return read_bundle(out).manifest


def test_eight_bits_are_taken_where_they_are_near_and_faster(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], capsys: pytest.CaptureFixture[str]
) -> None:
    timed(FAST)
    manifest = run(checkpoint, tmp_path / "b")
    assert manifest.precision == "int8" and manifest.packing["align_tokens"] == 4
    assert manifest.parity["changed_labels"] <= 1
    assert "int8 is 2.0 times as fast as fp32, and within tolerance (on unlabelled" in capsys.readouterr().err


def test_the_float32_graph_lies_beside_the_one_in_eight_bits(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None]
) -> None:
    timed(FAST)
    run(checkpoint, tmp_path / "both")
    bundle = read_bundle(tmp_path / "both")
    fallback = bundle.fallback
    assert fallback is not None and fallback.graph == FALLBACK
    assert fallback.manifest.precision == "fp32" and fallback.manifest.packing["align_tokens"] == 1
    assert fallback.manifest.parity["largest_difference"] < 1e-4 and fallback.fallback is None
    assert set(SelfTest.parse(bundle.read(SELF_TEST)).answers) == {MODEL, FALLBACK}
    run(checkpoint, tmp_path / "one", "--no-fallback")
    one = read_bundle(tmp_path / "one")
    assert one.manifest.precision == "int8" and one.fallback is None and FALLBACK not in one.manifest.files


def test_the_manifest_says_what_was_tried_and_why_one_was_taken(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None]
) -> None:
    timed(FAST)
    choice = run(checkpoint, tmp_path / "b", "--dev", str(dev_file(tmp_path))).choice
    assert choice["asked"] == "auto" and "2.0 times as fast" in choice["why"] and "accuracy" in choice["why"]
    assert {name: tried["milliseconds"] for name, tried in choice["tried"].items()} == FAST
    for tried in choice["tried"].values():
        assert tried["parity"]["texts"] == 60 and tried["dev_score"]["metric"] == "accuracy"
    before = {tried["dev_score"]["before"] for tried in choice["tried"].values()}
    assert len(before) == 1  # of the same float32 graph
    assert choice["machine"]["onnxruntime"] == onnxruntime.__version__ and choice["machine"]["threads"] == 1


def test_float32_is_taken_where_eight_bits_are_no_faster(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], capsys: pytest.CaptureFixture[str]
) -> None:
    timed(SLOW)
    manifest = run(checkpoint, tmp_path / "b")
    assert manifest.precision == "fp32"
    why = "int8 is refused: it is 1.01 times as fast as fp32 here, and 1.1 is asked for"
    assert manifest.choice["why"] == why and why in capsys.readouterr().err
    assert manifest.choice["tried"]["int8"]["parity"]["labels"] == 364


def test_all_texts_are_run_where_parts_of_them_are_not_enough(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(FAST)
    monkeypatch.setattr(Changes, "are_surely_few", lambda self, allowed: False)
    assert run(checkpoint, tmp_path / "b").choice["tried"]["int8"]["parity"]["labels"] == 1212


def test_float32_is_taken_where_eight_bits_are_too_far(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], capsys: pytest.CaptureFixture[str]
) -> None:
    timed(FAST)
    manifest = run(
        checkpoint, tmp_path / "b", "--tolerance-neighbours", "2e-6", "--tolerance-difference", "1e-4"
    )
    assert manifest.precision == "fp32"
    assert "int8 is refused: the scores differ from the checkpoint's by" in capsys.readouterr().err
    tried = manifest.choice["tried"]["int8"]
    assert (
        tried["refused"].endswith("and 0.0001 is allowed") and tried["measured"]["largest_difference"] > 1e-4
    )
    assert tried["milliseconds"] == FAST["int8"]


def test_float32_is_taken_where_the_score_on_labelled_data_falls(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(FAST)

    def of_nobody(self: Fp32, texts: Sequence[EncodedText]) -> list[Any]:
        answers = packed(self, texts)
        return [np.roll(rows, 1, axis=1) for rows in answers] if len(texts) == 12 else answers

    file = dev_file(tmp_path)
    context = ExportContext(read_checkpoint(checkpoint), file)
    best = np.concatenate(context.float32_on_dev).argmax(axis=-1)
    rows = [f"the soup was cold {n}\t{label}" for n, label in enumerate(best)]
    file.write_text("\n".join(["sentence\tlabel", *rows]), encoding="utf-8")
    packed = EXPORTERS["int8"].packed
    monkeypatch.setattr(EXPORTERS["int8"], "packed", of_nobody)
    manifest = run(checkpoint, tmp_path / "b", "--dev", str(file))
    assert manifest.precision == "fp32"
    assert "accuracy falls from 1.0000 to 0.0000" in manifest.choice["tried"]["int8"]["refused"]
    assert manifest.dev_score["before_is"] == "the same graph"


def test_extreme_weights_end_in_float32(tmp_path: Path, timed: Callable[[Times], None]) -> None:
    """Attention that looks at one token only: a small error makes it another one."""
    timed(FAST)
    folder = tmp_path / "extreme"
    write_checkpoint(folder, SPECS["classification"], initializer_range=3.0)
    weights = load_file(folder / "model.safetensors")
    weights |= {name: 0.01 * weight for name, weight in weights.items() if name.startswith("classifier.")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    manifest = run(folder, tmp_path / "b")
    tried = manifest.choice["tried"]["int8"]
    assert manifest.precision == "fp32" and "relative error" in tried["refused"]
    assert tried["measured"]["relative_error"] > 0.15


def test_a_checkpoint_that_float32_does_not_answer_like_is_refused(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], capsys: pytest.CaptureFixture[str]
) -> None:
    timed(FAST)
    arguments = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "b"), "--tolerance-difference", "0"]
    assert main(arguments) == 1
    assert "this is a bug of bert-export" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_given_precision_is_written_as_ever_with_no_choice(checkpoint: Path, tmp_path: Path) -> None:
    assert run(checkpoint, tmp_path / "b", "--precision", "fp32").choice == {}


def test_bundles_of_before_the_choice_are_read(checkpoint: Path, tmp_path: Path) -> None:
    values = run(checkpoint, tmp_path / "b", "--precision", "fp32").to_dict()
    del values["choice"]
    assert Manifest.from_dict(values).choice == {}


def test_demo_leaves_what_auto_has_chosen(
    checkpoint: Path, tmp_path: Path, timed: Callable[[Times], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, times in enumerate((FAST, SLOW)):
        timed(times)
        arguments = ["--demo", "--models", str(checkpoint.parent), "--out", str(tmp_path / str(number))]
        assert main(arguments) == 0
        bundle = tmp_path / str(number) / "tiny"
        inode = (bundle / "bundle.json").stat().st_ino
        capsys.readouterr()
        assert main(arguments) == 0
        assert capsys.readouterr().err == f"{bundle} is there\n"
        assert (bundle / "bundle.json").stat().st_ino == inode
        chosen = read_bundle(bundle).manifest.precision
        assert is_current(bundle, checkpoint, "auto") and is_current(bundle, checkpoint, chosen)
    # One that was asked for by its precision is not what auto would have taken.
    assert main([*arguments[:-1], str(tmp_path / "given"), "--precision", "fp32"]) == 0
    assert not is_current(tmp_path / "given" / "tiny", checkpoint, "auto")


class TestWithCuda:
    @pytest.fixture(autouse=True)
    def has_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(
            "model_export.verify.auto_precision.ort.get_available_providers", lambda: providers
        )

    def use(self, monkeypatch: pytest.MonkeyPatch, maker: object) -> None:
        monkeypatch.setitem(EXPORTERS, "fp16", maker)

    def test_fp16_is_taken(self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class OnTheCpu(Fp16):
            def __init__(self, *arguments: Any) -> None:
                with monkeypatch.context() as patch:
                    patch.setattr("model_export.verify.precision.CUDA", "none")
                    super().__init__(*arguments)

        self.use(monkeypatch, OnTheCpu)
        manifest = run(checkpoint, tmp_path / "b")
        assert (manifest.precision, manifest.layout) == ("fp16", "flat")
        assert list(manifest.choice["tried"]) == ["fp16"]

    def test_float32_is_taken_where_float16_cannot_hold_the_weights(
        self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise ExportError("too large")

        self.use(monkeypatch, fails)
        manifest = run(checkpoint, tmp_path / "b")
        assert (manifest.precision, manifest.choice["why"]) == ("fp32", "fp16 is refused: too large")

    @pytest.mark.parametrize("opens", [True, False])
    def test_float32_is_taken_where_the_gpu_fails(
        self, opens: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As onnxruntime-gpu does without a driver, or at the first run where a library is missing."""

        open_session, run_session = GraphSession.__init__, GraphSession.run

        def opened(self: Any, model: onnx.ModelProto, packer: Packer) -> None:
            self.is_flat = packer.layout == "flat"
            if self.is_flat and not opens:
                raise RuntimeError("no device\nmore")
            if not self.is_flat:
                open_session(self, model, packer)

        def ran(self: Any, texts: Any) -> list[Floats]:
            if self.is_flat:
                raise RuntimeError("no device\nmore")
            return run_session(self, texts)

        monkeypatch.setattr(GraphSession, "__init__", opened)
        monkeypatch.setattr(GraphSession, "run", ran)
        manifest = run(checkpoint, tmp_path / "b")
        assert manifest.precision == "fp32"
        assert manifest.choice["why"] == "fp16 is refused: a GPU's graph cannot be run here: no device"


@pytest.mark.parametrize("texts", [199, 200])
def test_the_dev_file_of_task_json_decides_where_it_is_large_enough(
    texts: int, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(SPECS["classification"], data={"dev": [{"path": str(dev_file(tmp_path, texts))}]})
    shutil.copytree(checkpoint, tmp_path / "recorded")
    spec.write(tmp_path / "recorded")
    lax = ("--precision", "int8", "--tolerance-labels", "0", "--tolerance-score-drop", "1")
    scored = run(tmp_path / "recorded", tmp_path / "b", *lax).dev_score
    if texts < 200:
        assert not scored and "has 199 texts, too few to decide" in capsys.readouterr().err
    else:
        assert scored["texts"] == 200 and scored["data"] == "dev.tsv"
