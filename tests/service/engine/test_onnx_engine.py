"""A bundle's graph through packing and back: a text has the same outputs alone and in a batch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest

from bert.bundle import Bundle, read_bundle, write_bundle
from bert.errors import BundleError, EngineError
from bert.graph_inputs import Floats, Ints
from bert.manifest import CPU, CUDA
from bert.packing import CostModel
from bert.tasks import fill_mask
from bert.tasks.registry import TASKS
from bert.tokenizer import Encoding, Tokenizer
from service.engine.cuda_graphs import CapturedGraphs
from service.engine.onnx_engine import OnnxEngine
from tests.support.tiny import SPECS

TEXTS = ["a warm film", "", "where is paris", "the " * 25, "munich", "how long is it and not dull"]


def open_engine(bundles: Path, name: str, threads: int = 1) -> tuple[OnnxEngine, list[Encoding]]:
    bundle = read_bundle(bundles / name)
    tokenizer = Tokenizer.load(bundle.tokenizer_path)
    if bundle.manifest.task.task == "fill_mask":
        texts = fill_mask.pieces(tokenizer, [f"[MASK] {text} [MASK]" for text in TEXTS])
    else:
        texts = tokenizer.pieces(TEXTS)
    return OnnxEngine(bundle, threads), [tokenizer.single(pieces) for pieces in texts]


def test_providers_that_the_graph_was_not_verified_on_are_refused(bundles: Path) -> None:
    bundle = read_bundle(bundles / "mood")
    session = {"providers": ["CUDAExecutionProvider"]}
    changed = replace(bundle, manifest=replace(bundle.manifest, session=session))
    with pytest.raises(BundleError, match=r"verified on \['CPUExecutionProvider'\]"):
        OnnxEngine(changed, 1)


def for_gpu(bundle: Bundle) -> Bundle:
    session = {**bundle.manifest.session, "providers": [CUDA]}
    return replace(
        bundle, manifest=replace(bundle.manifest, layout="flat", precision="fp16", session=session)
    )


def test_a_bundle_for_a_gpu_is_refused_where_onnxruntime_has_none(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(
        BundleError, match=rf"is for a GPU \({CUDA}\), and this onnxruntime has only {CPU}: install"
    ):
        OnnxEngine(for_gpu(read_bundle(bundles / "mood")), 1)


@pytest.mark.parametrize("session", [{"providers": [CPU]}, {}])
def test_a_bundle_for_the_cpu_runs_there_though_a_gpu_is_available(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, session: dict[str, list[str]]
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    bundle = read_bundle(bundles / "mood")
    engine = OnnxEngine(replace(bundle, manifest=replace(bundle.manifest, session=session)), 1)
    assert engine.provider == CPU
    assert engine._session.get_providers() == [CPU]


def test_a_session_that_opened_elsewhere_is_refused(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Onnxruntime goes on with the next provider where a driver is missing, and says so in its log only."""
    opened = onnxruntime.InferenceSession

    def falls_back(path: str, options: object, providers: list[str]) -> object:
        return opened(path, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", falls_back)
    with pytest.raises(BundleError, match=rf"is to run on {CUDA}, and onnxruntime opened \['{CPU}'\]"):
        OnnxEngine(for_gpu(read_bundle(bundles / "mood")), 1)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_text_gets_the_same_numbers_alone_first_last_and_in_company(bundles: Path, name: str) -> None:
    engine, encodings = open_engine(bundles, name)
    alone = [engine.run([encoding]).texts[0] for encoding in encodings]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 4, 0, 2, 1], [3, 3, 1, 0]):
        together = engine.run([encodings[i] for i in order]).texts
        for i, output in zip(order, together, strict=True):
            assert output.shape == alone[i].shape
            np.testing.assert_allclose(output, alone[i], atol=1e-5)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_each_text_gets_a_row_for_each_head(bundles: Path, name: str) -> None:
    engine, encodings = open_engine(bundles, name)
    spec = SPECS[name]
    for encoding, output in zip(encodings, engine.run(encodings).texts, strict=True):
        rows = len(TASKS[spec.task].head_positions(encoding))
        shape = (
            (2, fill_mask.MAX_CANDIDATES)
            if spec.task == "fill_mask"
            else (TASKS[spec.task].head_outputs(spec) or 32,)
        )
        assert output.shape == (rows, *shape)


def test_only_the_best_scores_of_a_mask_are_returned(bundles: Path) -> None:
    """A request of many masks would hold gigabytes, were every piece's score kept until it is decoded."""
    engine, (encoding, *_) = open_engine(bundles, "gaps")
    for ids, scores in engine.run([encoding]).texts[0]:
        assert len(set(ids.tolist())) == len(ids) and (np.diff(scores) <= 0).all()
        assert 0.5 < scores.sum() <= 1 + 1e-6


def test_one_thread_and_two_give_the_same(bundles: Path) -> None:
    one, encodings = open_engine(bundles, "mood", 1)
    two, _ = open_engine(bundles, "mood", 2)
    for a, b in zip(one.run(encodings).texts, two.run(encodings).texts, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_embeddings_have_length_one(bundles: Path) -> None:
    engine, encodings = open_engine(bundles, "meaning")
    lengths = [float(np.linalg.norm(output)) for output in engine.run(encodings).texts]
    np.testing.assert_allclose(lengths, 1.0, atol=1e-5)


def test_padding_is_measured(bundles: Path) -> None:
    engine, encodings = open_engine(bundles, "mood")
    engine.set_cost(CostModel(1000.0, run_tokens=100.0))
    assert engine.run([encodings[0]]).padding_ratio == 0.0
    run = engine.run(
        [*4 * [encodings[3]], encodings[0]]
    )  # 27, 27 and 5 tokens in a row of 59, 27 and 27 in one
    assert run.padding_ratio == pytest.approx(5 / 118)


def test_ids_beyond_the_vocabulary_are_an_engine_error_and_the_engine_goes_on(bundles: Path) -> None:
    engine, encodings = open_engine(bundles, "mood")
    ids = encodings[0].ids.copy()
    ids[1] = 10_000
    broken = Encoding(ids, encodings[0].segment_ids, encodings[0].offsets, encodings[0].word_ids, ids)
    with pytest.raises(EngineError, match="the graph failed on 5 tokens"):
        engine.run([broken])
    assert np.isfinite(engine.run([encodings[0]]).texts[0]).all()


def test_a_damaged_graph_says_which_file(bundles: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (bundles / "mood").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"model\.onnx cannot be opened"):
        OnnxEngine(read_bundle(folder, verify_hashes=False), 1)


def test_labels_that_the_graph_has_no_scores_for_are_refused(bundles: Path, tmp_path: Path) -> None:
    bundle = read_bundle(bundles / "mood")
    spec = replace(bundle.manifest.task, labels=("bad", "good", "neither", "both", "other"))
    files = {name: (bundle.folder / name).read_bytes() for name in bundle.manifest.files}
    other = write_bundle(tmp_path / "mood", replace(bundle.manifest, task=spec), files)
    with pytest.raises(BundleError, match="with 5 labels gives logits of width 5: manifest and graph do not"):
        OnnxEngine(other, 1)


def test_failing_captured_graphs_are_dropped_for_the_session(
    bundles: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def run(self, *_: object) -> None:
            raise RuntimeError("the device is lost")

    engine, texts = open_engine(bundles, "mood")
    expected = engine.run(texts)
    engine._captured = cast(CapturedGraphs, Failing())
    found = engine.run(texts)
    assert [each.tolist() for each in found.texts] == [each.tolist() for each in expected.texts]
    assert engine._captured is None and "the device is lost" in caplog.text


def test_outputs_of_two_runs_are_in_the_order_of_the_texts(bundles: Path) -> None:
    engine, encodings = open_engine(bundles, "mood")
    sizes: list[int] = []
    run_session = engine._run_session

    def counted(inputs: Mapping[str, Ints], options: Any = None) -> Floats:
        sizes.append(inputs["input_ids"].size)
        return run_session(inputs, options)

    engine._run_session = counted  # type: ignore[method-assign]
    outputs = []
    for run_tokens in (1000.0, 0.0):
        engine.set_cost(CostModel(50.0, run_tokens))
        outputs.append(engine.run(encodings).texts)
    assert len(sizes) == 3, "one run, then two"
    for found, expected in zip(*outputs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
