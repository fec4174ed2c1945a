"""8 bits: close to the checkpoint, and no text's answer depends on its neighbours."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bert.checkpoint.weights import Checkpoint
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.build import build_graph
from model_export.graph.calibration import Calibration
from model_export.graph.graph_checks import check_attention, check_form
from model_export.graph.rounding import LEVELS, PAIR_LEVELS, inverse_root, round_weight
from model_export.reference import Reference
from model_export.verify.precision import GraphSession, packer_for
from model_export.verify.texts import EncodedText
from tests.support.checkpoints import SPECS, checkpoint_and_texts, random_text, write_checkpoint

SHAPES = {"even": (48, 20), "odd": (47, 20), "one input": (1, 5)}


def difficult_weight(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return weights with outliers, all of one sign in some outputs: the pairs that saturate first."""
    rng = np.random.default_rng(2)
    weight = rng.standard_t(2, shape).astype(np.float32)
    weight[:, ::4] = np.abs(weight[:, ::4])
    weight[:, 1::4] = 1.0
    return weight


def in_16_bits(activations: NDArray[np.uint8], weight: NDArray[np.int8]) -> NDArray[np.int32]:
    """Multiply as `vpmaddubsw` does: the products of two neighbouring inputs are added in 16 bits and cut off."""
    sums = np.zeros((len(activations), weight.shape[1]), np.int32)
    for first in range(0, len(weight), 2):
        pair = slice(first, first + 2)
        products = activations[:, pair].astype(np.int32) @ weight[pair].astype(np.int32)
        sums += np.clip(products, -(2**15), 2**15 - 1)
    return sums


def worst_activations(weight: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return, for each output, the largest activation wherever its weight is positive, and wherever it is negative."""
    return np.concatenate([np.where(weight > 0, 255, 0).T, np.where(weight < 0, 255, 0).T]).astype(np.uint8)


def runner_of(checkpoint: Checkpoint, texts: list[EncodedText]) -> GraphSession:
    config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
    calibration = Calibration(config, spec, weights, [text.encoding for text in texts])
    graph = build_graph(config, spec, weights, partial(Int8Ops, calibration=calibration))
    check_form(graph)
    check_attention(graph, config.num_hidden_layers)
    return GraphSession(graph, packer_for(config, "int8"), threads=1)


def pair_sums(quantised: NDArray[np.int8]) -> NDArray[np.int32]:
    """Return the sums of the positive and of the negative weights of each pair, (2, pairs, out); q is (in, out)."""
    values = quantised.astype(np.int32)
    if len(values) % 2:
        values = np.concatenate([values, np.zeros_like(values[:1])])
    signs = np.stack([np.maximum(values, 0), np.minimum(values, 0)])
    sums: NDArray[np.int32] = signs.reshape(2, -1, 2, values.shape[1]).sum(axis=2)
    return sums


@pytest.mark.parametrize(
    "changes", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"hidden_act": "silu"}], ids=str
)
def test_scores_stay_near_the_checkpoint(changes: dict[str, str], tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"], **changes)
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    runner = runner_of(checkpoint, texts[::2])
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    expected = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]
    a, b = np.concatenate(expected), np.concatenate(runner.packed(texts))
    assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(a)
    assert (a.argmax(-1) == b.argmax(-1)).mean() > 0.97


@pytest.mark.parametrize("name", ["classification", "similarity", "qa", "fill_mask"])
def test_neighbours_change_nothing(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS[name])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    runner = runner_of(checkpoint, texts[:8])
    text, short, long = (random_text(SPECS[name], tokens, seed=tokens) for tokens in (17, 3, 120))
    (alone,) = runner.run([text])
    batches = [([text, short], 0), ([short, text], 1), ([long, short, text], 2), ([text, long], 0)]
    batches.append(([*texts[:20], text, *texts[20:40]], 20))
    for batch, place in batches:
        assert np.abs(runner.run(batch)[place] - alone).max() < 1e-6


def test_texts_without_a_word_have_no_rows(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    runner, wordless = runner_of(checkpoint, texts[:8]), random_text(SPECS["ner"], 2)
    assert [len(found) for found in runner.run([wordless, wordless])] == [0, 0]
    assert runner.run([wordless])[0].shape == (0, 5)


def test_weights_rounded_for_their_inputs_give_nearer_products() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((48, 48))  # inputs whose features go together, as real ones do
    inputs = (rng.standard_normal((500, 48)) @ mixing).astype(np.float32)
    weight = rng.standard_normal((48, 20)).astype(np.float32)
    quantised, scale = round_weight(weight, inverse_root(inputs))
    nearest = np.clip(np.rint(weight / scale), -LEVELS, LEVELS) * scale
    exact = inputs @ weight

    def error(candidate: np.ndarray) -> float:
        return float(np.linalg.norm(inputs @ candidate - exact))

    assert quantised.dtype == np.int8 and 100 < np.abs(quantised.astype(int)).max() <= LEVELS
    assert error(quantised * scale) < 0.8 * error(nearest)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_pair_of_weights_passes_16_bits(shape: tuple[int, int]) -> None:
    weight = difficult_weight(shape)
    inputs = np.random.default_rng(3).standard_normal((100, shape[0])).astype(np.float32)
    quantised, _ = round_weight(weight, inverse_root(inputs))
    assert np.abs(pair_sums(quantised)).max() <= PAIR_LEVELS
    worst = worst_activations(quantised)
    assert np.array_equal(in_16_bits(worst, quantised), worst.astype(np.int32) @ quantised.astype(np.int32))


def test_weights_of_all_levels_pass_16_bits() -> None:
    weight = np.full((2, 1), LEVELS, np.int8)
    worst = worst_activations(weight)
    assert in_16_bits(worst, weight).max() == 2**15 - 1 < (worst.astype(np.int32) @ weight).max()


def test_every_weight_of_a_graph_keeps_to_16_bits(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
    calibration = Calibration(config, spec, weights, [text.encoding for text in texts[:8]])
    graph = build_graph(config, spec, weights, partial(Int8Ops, calibration=calibration)).graph
    found = [numpy_helper.to_array(t) for t in graph.initializer if t.data_type == TensorProto.INT8]
    assert len(found) == 6 * config.num_hidden_layers
    assert all(np.abs(pair_sums(weight)).max() <= PAIR_LEVELS for weight in found)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16])
def test_products_are_exact_on_this_processor(rows: int) -> None:
    rng = np.random.default_rng(rows)
    weight, _ = round_weight(
        difficult_weight((192, 80)), inverse_root(rng.standard_normal((200, 192)).astype(np.float32))
    )
    activations = np.resize(worst_activations(weight), (rows, 192))
    product = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph(
        [product],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [rows, 192])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [rows, 80])],
        [numpy_helper.from_array(weight, "b")],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": activations})
    assert np.array_equal(found, activations.astype(np.int32) @ weight.astype(np.int32))


def test_rounding_does_not_depend_on_its_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    inputs, weight = rng.standard_normal((90, 30)), rng.standard_normal((30, 7)).astype(np.float32)
    whole, _ = round_weight(weight, inverse_root(inputs.astype(np.float32)))
    monkeypatch.setattr("model_export.graph.rounding.BLOCK", 4)
    blocks, _ = round_weight(weight, inverse_root(inputs.astype(np.float32)))
    assert np.array_equal(whole, blocks)


def test_features_and_outputs_of_zero_are_no_trouble() -> None:
    inputs, weight = np.zeros((5, 6), np.float32), np.zeros((6, 3), np.float32)
    quantised, scale = round_weight(weight, inverse_root(inputs))
    assert not quantised.any() and np.isfinite(scale).all() and (scale > 0).all()


def test_calibration_reads_enough_texts_and_keeps_one_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    encodings = [text.encoding for text in texts]
    monkeypatch.setattr("model_export.graph.calibration.MAX_TOKENS", len(encodings[0]) + 1)
    calibration = Calibration(checkpoint.config, checkpoint.spec, checkpoint.weights, encodings)
    layer = "bert.encoder.layer.{}.attention.self.{}"
    first = calibration.inputs(layer.format(0, "query"))
    assert len(first) == len(encodings[0]) + len(encodings[1])
    assert calibration.inputs(layer.format(0, "value")) is first, "they read the same"
    assert calibration.inputs(layer.format(1, "key")) is not first
    assert layer.format(0, "query") not in calibration._kept
