"""The graph for CUDA, evaluated in numpy by the operators' documentation."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bert.errors import ExportError
from bert.graph_inputs import flat_inputs
from model_export.graph.bert.cuda_ops import CudaOps, to_half
from model_export.graph.build import build_graph
from model_export.graph.graph_checks import check_attention, check_form, check_types, fused_operators
from model_export.verify.fp16_reference import run_flat
from tests.support.checkpoints import SPECS, checkpoint_and_texts, hf_outputs, random_text, write_checkpoint


def flat_graph(folder: Path) -> onnx.ModelProto:
    checkpoint, _ = checkpoint_and_texts(folder)
    return build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CudaOps)


@pytest.mark.parametrize(
    "name", ["classification", "ner", "qa", "multiple_choice", "similarity", "cls", "fill_mask"]
)
def test_every_head_answers_as_transformers_within_half_precision(name: str, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, SPECS[name])
    _, texts = checkpoint_and_texts(tmp_path)
    texts = texts[::4]
    for text, found in zip(texts, run_flat(flat_graph(tmp_path), texts), strict=True):
        expected = hf_outputs(model, SPECS[name], text)
        assert found.dtype == np.float32
        assert np.allclose(found, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_every_activation(activation: str, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, SPECS["ner"], hidden_act=activation)
    graph = flat_graph(tmp_path)
    check_types(graph)
    _, texts = checkpoint_and_texts(tmp_path)
    for text, found in zip(texts[:5], run_flat(graph, texts[:5]), strict=True):
        assert np.allclose(found, hf_outputs(model, SPECS["ner"], text), atol=1e-2, rtol=1e-2)


def test_everything_that_can_be_fused_is(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    graph = flat_graph(tmp_path)
    check_form(graph)
    check_attention(graph, 2)
    assert fused_operators(graph) == {
        "com.microsoft.BiasGelu": 2,
        "com.microsoft.EmbedLayerNormalization": 1,
        "com.microsoft.PackedAttention": 2,
        "com.microsoft.SkipLayerNormalization": 4,
    }


def test_only_similarity_asks_which_text_a_token_is_of(tmp_path: Path) -> None:
    for name in ("ner", "similarity"):
        write_checkpoint(tmp_path / name, SPECS[name])
        names = {tensor.name for tensor in flat_graph(tmp_path / name).graph.input}
        assert ("text_ids" in names) == (name == "similarity")


def test_token_offsets_are_those_of_remove_padding() -> None:
    """The example of ONNX Runtime's ContribOperators.md: texts of 1, 2 and 4 tokens in a batch padded to 4."""
    texts = [random_text(SPECS["qa"], tokens) for tokens in (1, 2, 4)]
    feeds = flat_inputs([text.encoding for text in texts], [text.positions for text in texts])
    assert feeds["token_offset"].reshape(-1).tolist() == [0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7]
    assert feeds["cumulative_lengths"].tolist() == [0, 1, 3, 7]


def test_onnx_runtime_refuses_a_graph_with_wrong_types(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    graph = flat_graph(tmp_path)
    check_types(graph)
    wrong: Any = next(t for t in graph.graph.initializer if t.name.endswith("LayerNorm.weight"))
    wrong.CopyFrom(onnx.numpy_helper.from_array(np.ones(32, np.float32), wrong.name))
    with pytest.raises(ExportError, match="does not accept"):
        check_types(graph)


def test_weights_too_large_for_half_precision_are_refused() -> None:
    with pytest.raises(ExportError, match="layer holds 70000, and float16 ends at 65504"):
        to_half("layer", np.array([1, -70000], np.float32))
