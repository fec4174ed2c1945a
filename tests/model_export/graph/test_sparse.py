"""Graphs of sparse vectors: what `transformers` gives, by slices of the vocabulary, and alone as beside other texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from bert.bodies.body import EMBEDDING
from bert.checkpoint.weights import Checkpoint
from model_export.graph import sparse
from model_export.verify.parity import Tolerance
from model_export.verify.precision import Exporter, Fp16, Fp32, Int8
from model_export.verify.texts import EncodedText, shipped_texts
from model_export.verify.verified_graph import ExportContext, prove
from tests.support.checkpoints import SPECS
from tests.support.families import farthest, write_relative
from tests.support.published import read
from tests.support.sparse_folders import largest

FAMILIES = ["bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta-v2"]
SLICE = 100


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "SLICE", SLICE)


def texts_of(checkpoint: Checkpoint) -> list[EncodedText]:
    return shipped_texts(checkpoint.tokenizer, checkpoint.spec)[::3]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_scores_are_the_largest_of_a_text_in_transformers(family: str, tmp_path: Path) -> None:
    model = write_relative(tmp_path, family, SPECS["fill_mask"])
    checkpoint = read(tmp_path, task="sparse")
    assert checkpoint.spec.task == "sparse"
    graph, texts = Fp32(checkpoint, ()), texts_of(checkpoint)
    expected = [largest(model, text).numpy() for text in texts]
    scale = max(float(rows.max()) for rows in expected)
    assert scale > 1
    assert farthest(graph.alone(texts), expected) < 1e-5 * max(scale, 1)
    assert farthest(graph.packed(texts), expected) < 1e-5 * max(scale, 1)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("exporter", [Fp32, Int8, Fp16])
def test_no_tensor_has_the_scores_of_all_tokens(
    family: str, exporter: type[Exporter], tmp_path: Path
) -> None:
    write_relative(tmp_path, family, SPECS["fill_mask"])
    checkpoint = read(tmp_path, task="sparse")
    model = exporter(checkpoint, texts_of(checkpoint)[:2]).model
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    slices = [dims for name, dims in shapes.items() if name.startswith(f"{EMBEDDING}.") and len(dims) == 2]
    assert sum(dims[1] for dims in slices) == checkpoint.config.vocab_size
    assert max(dims[1] for dims in slices) == SLICE
    readers = {node.op_type for node in model.graph.node if EMBEDDING in node.input}
    assert readers <= {"Gather", "EmbedLayerNormalization"}
    onnx.checker.check_model(model)


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_in_8_bits_neighbours_change_no_bit(family: str, tmp_path: Path) -> None:
    write_relative(tmp_path, family, SPECS["fill_mask"])
    checkpoint = read(tmp_path, task="sparse")
    texts = texts_of(checkpoint)
    graph = Int8(checkpoint, texts[::2])
    for alone, packed in zip(graph.alone(texts), graph.packed(texts), strict=True):
        np.testing.assert_array_equal(alone, packed)


def test_a_graph_for_cuda_says_the_same_in_numpy(tmp_path: Path) -> None:
    write_relative(tmp_path, "bert", SPECS["fill_mask"])
    checkpoint = read(tmp_path, task="sparse")
    checkpoint = replace(checkpoint, spec=replace(checkpoint.spec, max_tokens=40))
    context = ExportContext(checkpoint, few_texts=True)
    assert prove(context, Fp16(checkpoint, ()), Tolerance.of("fp16")).parity["scaled_difference"] < 1e-2
