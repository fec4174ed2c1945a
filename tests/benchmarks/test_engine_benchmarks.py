"""The benchmarks of the engine alone, on a model of random weights that is quick."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.engine import layers, operators, packing, speed
from benchmarks.engine.op_variants import GraphSize, inputs_of, parts
from benchmarks.engine.operators import opened, table
from benchmarks.engine.shapes import flops
from benchmarks.engine.texts import MIXED, in_batches, random_texts
from bert.config import BertConfig
from bert.packing import CostModel
from tests.support.tiny import SPECS, write_tiny_bundle

SMALL = GraphSize(tokens=32, row=16, width=64, heads=4, inner=128)
ONLY_NEAR = {
    "MatMul, FastGelu",
    "DynamicQuantizeMatMul",
    "QuantizeLinear, QLinearMatMul, DequantizeLinear, Add",
    "MatMulNBits, blocks of 32",
    "float32: Gemm",
}


def test_texts_are_cut_into_batches_in_their_order() -> None:
    texts = random_texts(MIXED, 5000)
    batches = in_batches(texts, 600)
    assert [text for batch in batches for text in batch] == texts
    assert all(sum(map(len, batch)) <= 600 for batch in batches)
    assert 30 < sum(map(len, texts)) / len(texts) < 60


def test_a_text_longer_than_a_batch_has_one_of_its_own() -> None:
    assert [len(batch) for batch in in_batches(random_texts("100", 300), 50)] == [1, 1, 1]


def test_operations_of_bert_large_at_384() -> None:
    """24 layers of 12 H^2 weights for each token, and attention: 2 * 302 M + 4 * 24 * 384 * 1024 a token."""
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    by_hand = 384 * (2 * 24 * 12 * 1024**2 + 24 * 4 * 384 * 1024)
    assert flops(config, random_texts("384", 384)) == pytest.approx(by_hand)


@pytest.mark.parametrize("part", list(parts(SMALL)))
def test_forms_that_are_said_to_be_equal_are(part: str) -> None:
    outputs = {form.name: opened(form, operators.CPU)()[0] for form in parts(SMALL)[part]}
    first, *_ = outputs.values()
    for name, output in outputs.items():
        assert output.shape == first.shape
        if name not in ONLY_NEAR:
            np.testing.assert_allclose(output, first, atol=2e-4, err_msg=name)


def test_inputs_are_as_the_graph_declares_them() -> None:
    for form in (form for forms in parts(SMALL).values() for form in forms):
        declared = {tensor.name for tensor in form.model.graph.input}
        assert inputs_of(form.model).keys() == declared


def test_a_profile_counts_nodes_and_the_operations_of_products() -> None:
    def event(name: str, operator: str, us: int) -> dict[str, Any]:
        shapes: dict[str, Any] = {
            "input_type_shape": [{"float": [10, 100]}],
            "output_type_shape": [{"float": [10, 50]}],
        }
        return {
            "cat": "Node",
            "name": f"{name}_kernel_time",
            "dur": us,
            "args": {"op_name": operator} | shapes,
        }

    events = [
        event("a", "Gemm", 300),
        event("a", "Gemm", 100),
        event("b", "Gemm", 100),
        event("c", "Add", 50),
    ]
    # Two nodes of 2 * 10 * 50 * 100 operations in 0.1 ms each.
    assert table(events) == ["| Gemm | 2 | 0.20 | 80 | 1 |", "| Add | 1 | 0.05 | 20 |  |"]


@pytest.mark.slow
def test_the_engine_is_measured_beside_pytorch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    brief = ["--models", "tiny", "--lengths", MIXED, "20", "--tokens", "400", "--batch-tokens", "200"]
    assert speed.main([*brief, "--device", "cpu", "--rounds", "1", "--trace", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| tiny | ")]
    assert [row[1:3] for row in rows[:4]] == [
        ["mixed", "ours"],
        ["mixed", "PyTorch, padded"],
        ["20", "ours"],
        ["20", "PyTorch, padded"],
    ]
    apart = [float(row[6].rstrip(" |")) for row in rows[:4]]
    assert max(apart) < 1e-4, "both compute the same"
    assert (tmp_path / "tiny" / "PyTorch-padded.json").stat().st_size > 0


@pytest.mark.slow
def test_operators_are_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "mood", "mood", SPECS["mood"], 0)
    brief = ["--tokens", "32", "--row", "16", "--width", "64", "--heads", "4", "--rounds", "2"]
    assert operators.main([str(tmp_path / "mood"), *brief]) == 0
    printed = capsys.readouterr().out
    assert "| sum and LayerNorm | SkipLayerNormalization |" in printed
    assert "Large products: Gemm " in printed and "| Attention | 1 |" in printed
    # The last layer, whose queries are the head positions alone.
    assert "| MultiHeadAttention | 1 |" in printed


@pytest.mark.slow
def test_packing_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tiny_bundle(tmp_path / "mood", "mood", SPECS["mood"], 0)
    monkeypatch.setattr(packing, "SIZES", (1, 3))
    monkeypatch.setattr(packing, "fitted_cost", lambda *_: CostModel(200.0, 1.0))
    assert packing.main([str(tmp_path / "mood"), "--batches", "2"]) == 0
    printed = capsys.readouterr().out
    assert "rows of 200 tokens, a run as much as 1 tokens" in printed
    assert printed.count("\n| 1 | ") == printed.count("\n| 3 | ") == 1


def test_a_layer_of_each_body_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layers, "BODIES", {"tiny": ("tiny", {}), "deeper": ("tiny", {"hidden_size": 16})})
    for precision in ("fp32", "int8"):
        assert layers.main(["--tokens", "8,16", "--rounds", "1", "--precision", precision]) == 0
        rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        assert rows[0][1:] == ["tiny, ms", "deeper, ms |"]
        assert [row[0] for row in rows[1:]] == ["| 8", "| 16"]
