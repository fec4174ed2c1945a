"""The graph against `transformers`: every head, every activation, alone and among other texts."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.graph_inputs import Packer
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.build import build_graph
from model_export.graph.graph_checks import check_attention, check_form, fused_operators
from model_export.reference import Reference
from model_export.verify.precision import GraphSession
from tests.support.checkpoints import SPECS, checkpoint_and_texts, hf_outputs, random_text, write_checkpoint
from tests.support.families import farthest

SHAPES: dict[str, dict[str, Any]] = {
    "gelu_new": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "silu": {"hidden_act": "silu"},
    "quick_gelu": {"hidden_act": "quick_gelu"},
    "one layer, one head": {"num_hidden_layers": 1, "num_attention_heads": 1},
    "heads of 20, three layers": {"hidden_size": 60, "num_attention_heads": 3, "num_hidden_layers": 3},
    "one segment, large epsilon": {"type_vocab_size": 3, "layer_norm_eps": 1e-3},
}


def compare(folder: Path, name: str, **changes: Any) -> None:
    spec = SPECS[name]
    model = write_checkpoint(folder, spec, **changes)
    checkpoint, texts = checkpoint_and_texts(folder)
    graph = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    check_form(graph)
    check_attention(graph, checkpoint.config.num_hidden_layers)
    runner = GraphSession(graph, Packer("rows"), threads=1)
    expected = [hf_outputs(model, spec, text) for text in texts]
    assert farthest(expected, runner.packed(texts)) < 1e-5
    assert farthest(expected[::7], runner.alone(texts[::7])) < 1e-5
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    some = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts[::7]]
    assert farthest(expected[::7], some) < 1e-5


@pytest.mark.parametrize("name", SPECS)
def test_every_head_answers_as_transformers(name: str, tmp_path: Path) -> None:
    compare(tmp_path, name)


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_every_shape_answers_as_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    compare(tmp_path, "ner", **changes)


@pytest.mark.parametrize("name", ["classification", "similarity"])
def test_neighbours_change_nothing(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    write_checkpoint(tmp_path, spec)
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    graph = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    run = GraphSession(graph, Packer("rows"), threads=1).run
    text, short, long = (random_text(spec, tokens, seed=tokens) for tokens in (17, 3, 120))
    (alone,) = run([text])
    for batch, place in [([text, short], 0), ([short, text], 1), ([long, short, text], 2), ([text, long], 0)]:
        assert np.abs(run(batch)[place] - alone).max() < 1e-5


def test_a_text_as_long_as_the_model_reads(tmp_path: Path) -> None:
    spec = SPECS["qa"]
    model = write_checkpoint(tmp_path, spec, max_position_embeddings=512)
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    graph = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    text = random_text(spec, 512)
    found = GraphSession(graph, Packer("rows"), threads=1).run([text])
    assert farthest([hf_outputs(model, spec, text)], found) < 1e-5


def test_attention_is_fused_in_every_layer_and_counted_by_domain(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    graph = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    check_form(graph)
    check_attention(graph, 2)
    assert fused_operators(graph) == {"com.microsoft.Attention": 2}
    # On CPU these are slower than what is written in their stead (docs/export.md).
    slower = {"SkipLayerNormalization", "BiasGelu", "EmbedLayerNormalization"}
    assert not slower & {node.op_type for node in graph.graph.node}


def test_what_is_written_is_what_runs(tmp_path: Path) -> None:
    """The session's own rewrites at the manifest's level leave the operators as they are."""
    import onnx
    import onnxruntime as ort

    write_checkpoint(tmp_path, SPECS["classification"])
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    build = partial(build_graph, checkpoint.config, checkpoint.spec, checkpoint.weights)
    graph = build(CpuOps)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx")
    kinds = ("Attention", "Gemm", "LayerNormalization", "Gelu", "Add", "Gather", "EmbedLayerNormalization")
    for kind in kinds:
        written, run = (sum(n.op_type == kind for n in g.graph.node) for g in (graph, optimised))
        assert written == run, kind
