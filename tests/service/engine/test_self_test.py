"""A graph whose outputs differ on this machine is not served; the bundle's float32 graph is, if it has one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.bundle import FALLBACK, MODEL, TOKENIZER, Bundle, read_bundle, write_bundle
from bert.errors import BundleError, EngineError
from bert.processor import instructions
from bert.self_test import SELF_TEST, SelfTest, encode
from bert.tokenizer import Tokenizer
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader, check
from service.engine.models import OpenedModel, SkippedBundle
from service.engine.onnx_engine import OnnxEngine
from tests.support.live import serving
from tests.support.tiny import SPECS, write_tiny_bundle

TEXTS = (("the film was warm",), ("dull",), ("angela merkel met paris in munich and it was not funny",))
OF_GRAPH = ("precision", "layout", "session", "packing", "parity", "fused_operators")
Answers = dict[str, float]
"""File of a graph → by how much its answers differ from those that the bundle expects."""


def load(bundle: Bundle) -> OpenedModel | SkippedBundle:
    return BundleLoader(find_bundles([bundle.folder]), threads=1).load(1)[bundle.folder]


@pytest.fixture
def bundle_with(tmp_path: Path) -> Callable[[Answers], Bundle]:
    """Write a bundle whose graphs answer otherwise than its self-test says."""

    def write(differences: Answers) -> Bundle:
        write_tiny_bundle(tmp_path / "plain", "mood", SPECS["mood"], seed=1)
        plain = read_bundle(tmp_path / "plain")
        tokenizer = Tokenizer.load(plain.tokenizer_path)
        found = OnnxEngine(plain, threads=1).run(encode(TEXTS, tokenizer, SPECS["mood"])).texts
        answers = {file: [x + np.float32(by) for x in found] for file, by in differences.items()}
        files = {name: plain.read(name) for name in plain.manifest.files}
        manifest = plain.manifest
        if FALLBACK in differences:
            files[FALLBACK] = files[MODEL]
            manifest = replace(manifest, fallback={key: getattr(manifest, key) for key in OF_GRAPH})
        files[SELF_TEST] = SelfTest(TEXTS, answers, dict.fromkeys(answers, 1e-4), "another kind").to_json()
        return write_bundle(tmp_path / "bundles" / "mood", manifest, files)

    return write


def test_a_graph_with_equal_outputs_is_served(bundle_with: Callable[[Answers], Bundle]) -> None:
    bundle = bundle_with({MODEL: 0.0, FALLBACK: 0.0})
    model = load(bundle)
    assert isinstance(model, OpenedModel)
    assert model.bundle.graph == MODEL and not model.why_fallback


@pytest.mark.parametrize("difference", [0.5, -0.01, float("nan")])
def test_a_graph_with_other_outputs_is_left_out_with_the_error(
    difference: float, bundle_with: Callable[[Answers], Bundle]
) -> None:
    bundle = bundle_with({MODEL: difference})
    with pytest.raises(BundleError) as refused:
        load(bundle)
    message = str(refused.value)
    assert f"on this processor ({instructions()}) than where it was exported (another kind)" in message
    assert "relative error" in message and "--precision fp32" in message


def test_the_float32_graph_is_served_instead(bundle_with: Callable[[Answers], Bundle]) -> None:
    bundle = bundle_with({MODEL: 0.5, FALLBACK: 0.0})
    with serving(bundles=[bundle.folder]) as live:
        (model,) = live.get("/models").json["models"]
        assert "relative error" in model["why_fallback"] and model["name"] == "mood"
        assert live.post("/classify", {"text": "dull"}).status == 200
        assert live.metric("bert_model_fallback", model="mood") == 1


def test_a_bundle_whose_float32_graph_differs_too_is_left_out(
    bundle_with: Callable[[Answers], Bundle],
) -> None:
    bundle = bundle_with({MODEL: 0.5, FALLBACK: 0.5})
    with pytest.raises(BundleError, match=r"fallback.onnx .* gives different outputs"):
        load(bundle)


def test_a_changed_self_test_is_detected(bundle_with: Callable[[Answers], Bundle]) -> None:
    bundle = bundle_with({MODEL: 0.0})
    (bundle.folder / SELF_TEST).write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"self_test.json has sha256"):
        load(bundle)


@pytest.mark.parametrize("fails", ["to open", "to run"])
def test_the_float32_graph_is_served_if_the_other_fails(
    fails: str, bundle_with: Callable[[Answers], Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_with({MODEL: 0.0, FALLBACK: 0.0})
    opened, run = OnnxEngine._open, OnnxEngine.run

    def open_or_fail(self: OnnxEngine, which: Bundle, *rest: Any) -> None:
        if fails == "to open" and which.graph == MODEL:
            raise BundleError("this processor has no kernel for it")
        self.graph = which.graph  # type: ignore[attr-defined]
        opened(self, which, *rest)

    def run_or_fail(self: OnnxEngine, encodings: Any) -> Any:
        if fails == "to run" and self.graph == MODEL:  # type: ignore[attr-defined]
            raise EngineError("illegal instruction")
        return run(self, encodings)

    monkeypatch.setattr(OnnxEngine, "_open", open_or_fail)
    monkeypatch.setattr(OnnxEngine, "run", run_or_fail)
    model = load(bundle)
    assert isinstance(model, OpenedModel)
    assert model.bundle.graph == FALLBACK
    assert ("no kernel" if fails == "to open" else "illegal instruction") in model.why_fallback


def test_a_bundle_without_a_self_test_is_served_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny_bundle(tmp_path / "mood", "mood", SPECS["mood"], seed=1)
    bundle = read_bundle(tmp_path / "mood")
    assert SELF_TEST not in bundle.manifest.files
    check(
        bundle, Tokenizer.parse(bundle.read(TOKENIZER), bundle.tokenizer_path), OnnxEngine(bundle, threads=1)
    )
    assert "has no self_test.json" in caplog.text
