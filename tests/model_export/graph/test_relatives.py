"""Parts of relatives, in every form of the graph: narrow embeddings, shared layers, a bias by distance."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnx
import pytest

from bert.bodies.deberta import DebertaBody
from bert.config import BertConfig
from bert.graph_inputs import Packer
from bert.tasks.spec import TaskSpec
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.bodies import attention_cost, graph_body, max_pairs
from model_export.graph.build import build_graph
from model_export.graph.calibration import Calibration
from model_export.graph.graph_checks import check_attention, check_form, check_types
from model_export.reference import Floats, Reference
from model_export.verify.fp16_reference import run_flat
from model_export.verify.precision import GraphSession, packer_for
from model_export.verify.texts import EncodedText
from tests.support.checkpoints import SPECS, random_text
from tests.support.families import farthest
from tests.support.random_weights import random_weights, small_config

_DISTANCES = {"pos_att_type": ("c2p", "p2c"), "position_biased_input": False, "max_relative_positions": 100}
DISENTANGLED = {
    "distances": small_config(model_type="deberta", **_DISTANCES),
    "buckets": small_config(
        **_DISTANCES,
        model_type="deberta-v2",
        position_buckets=32,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    ),
    "convolution": small_config(
        **{**_DISTANCES, "pos_att_type": ("p2c",)},
        model_type="deberta-v2",
        embedding_size=16,
        conv_kernel_size=3,
        conv_groups=2,
    ),
}
CONFIGS = {
    "narrow": small_config(model_type="electra", embedding_size=16),
    "shared": small_config(
        model_type="albert", embedding_size=16, num_hidden_groups=1, hidden_act="gelu_new"
    ),
    "groups": small_config(model_type="albert", embedding_size=32, num_hidden_groups=2, hidden_act="relu"),
    "inner": small_config(model_type="albert", embedding_size=16, num_hidden_groups=2, inner_group_num=2),
    "relative": small_config(model_type="mpnet", layer_norm_eps=1e-5),
    **DISENTANGLED,
}
LENGTHS = (17, 3, 120, 7, 256, 40, 129, 2, 9)  # with the longest that is read, and one over each bucket's end
LENGTHS_IN_NUMPY = (17, 256, 129)
"""Lengths where numpy evaluates the graph: its time follows the number of texts times the square of the longest."""
by_head = pytest.mark.parametrize(
    ("body", "name"),
    [
        *((body, name) for body in CONFIGS for name in ("classification", "ner", "similarity", "fill_mask")),
        *(
            ("narrow", name) for name in ("qa", "multiple_choice", "cls")
        ),  # whose graphs add nothing of the body's
    ],
)


def texts_of(spec: TaskSpec, lengths: Sequence[int] = LENGTHS) -> list[EncodedText]:
    texts = [random_text(spec, tokens, seed=tokens) for tokens in lengths]
    return [text for text in texts if len(text.positions)]


@cache
def expected(body: str, name: str, lengths: Sequence[int] = LENGTHS) -> list[Floats]:
    """Return what the reference answers to each text."""
    config, spec = CONFIGS[body], SPECS[name]
    reference = Reference(config, spec, random_weights(config, spec))
    return [
        reference.outputs(text.encoding.ids, text.encoding.segment_ids, text.positions)
        for text in texts_of(spec, lengths)
    ]


def int8_graph(config: BertConfig, spec: TaskSpec, texts: Sequence[EncodedText]) -> onnx.ModelProto:
    weights = random_weights(config, spec)
    calibration = Calibration(config, spec, weights, [text.encoding for text in texts])
    return build_graph(config, spec, weights, partial(graph_body(config).int8, calibration=calibration))


@by_head
def test_float32_answers_as_the_reference_alone_and_among_others(body: str, name: str) -> None:
    config, spec = CONFIGS[body], SPECS[name]
    texts = texts_of(spec)
    graph = build_graph(config, spec, random_weights(config, spec), graph_body(config).cpu)
    check_form(graph)
    check_attention(graph, len(config.layer_order))
    runner = GraphSession(graph, Packer("rows"), threads=1)
    answers = expected(body, name)
    assert farthest(answers, runner.run(texts)) < 1e-5
    assert farthest(answers, runner.alone(texts)) < 1e-5


@by_head
def test_8_bits_stay_near_and_do_not_depend_on_neighbours(body: str, name: str) -> None:
    config, spec = CONFIGS[body], SPECS[name]
    texts = texts_of(spec)
    graph = int8_graph(config, spec, texts)
    check_form(graph)
    check_attention(graph, len(config.layer_order))
    runner = GraphSession(graph, packer_for(config, "int8"), threads=1)
    alone, answers = runner.alone(texts), expected(body, name)
    a, b = np.concatenate(answers), np.concatenate(alone)
    assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(a)
    # A mean is a product over all tokens of a batch, after the last rounding.
    allowed = 1e-6 if name == "similarity" else 0.0
    for order in (texts, texts[::-1]):
        found = runner.run(order)
        assert farthest(alone, found if order is texts else found[::-1]) <= allowed


@by_head
def test_the_graph_for_cuda_answers_within_half_precision(body: str, name: str) -> None:
    config, spec = CONFIGS[body], SPECS[name]
    texts = texts_of(spec, LENGTHS_IN_NUMPY)
    graph = build_graph(config, spec, random_weights(config, spec), graph_body(config).cuda)
    check_form(graph)
    check_attention(graph, len(config.layer_order))
    check_types(graph)
    for answer, found in zip(expected(body, name, LENGTHS_IN_NUMPY), run_flat(graph, texts), strict=True):
        assert np.allclose(found, answer, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "heads", "width"),
    [
        *((name, *shape) for name in ("relative", "buckets") for shape in ((2, 8), (3, 48), (2, 64))),
        *(("distances", 3, 48), ("convolution", 2, 8)),
    ],
)
def test_distances_give_the_same_bits_wherever_a_text_lies(name: str, heads: int, width: int) -> None:
    config = replace(
        CONFIGS[name],
        hidden_size=heads * width,
        num_attention_heads=heads,
        num_hidden_layers=2,
        max_position_embeddings=512,
    )
    spec, drawn = SPECS["ner"], np.random.default_rng(width)
    texts = [
        random_text(spec, tokens, seed=tokens)
        for tokens in (3, 4, 5, 16, 31, 64, 100, 127, 129, 200, 300, 512)
    ]
    runner = GraphSession(int8_graph(config, spec, texts), packer_for(config, "int8"), threads=1)
    alone = runner.alone(texts)
    for _ in range(6):
        chosen = drawn.permutation(len(texts))[: drawn.integers(2, len(texts) + 1)]
        found = runner.run([texts[n] for n in chosen])
        assert all(np.array_equal(alone[n], each) for n, each in zip(chosen, found, strict=True))


def parameters(graph: onnx.ModelProto) -> int:
    """Return the bytes of all tensors of two dimensions; scales and biases of a layer are next to nothing."""
    return sum(len(tensor.raw_data) for tensor in graph.graph.initializer if len(tensor.dims) > 1)


@pytest.mark.parametrize("name", ["ner", "fill_mask"])
def test_shared_layers_are_stored_once_in_every_precision(name: str) -> None:
    spec = SPECS[name]
    once, often = (
        small_config(model_type="albert", embedding_size=16, num_hidden_groups=1, num_hidden_layers=layers)
        for layers in (2, 12)
    )
    texts = texts_of(spec)[:4]
    for ops in (CpuOps, CudaOps):
        small, large = (build_graph(c, spec, random_weights(c, spec), ops) for c in (once, often))
        assert parameters(small) == parameters(large)
    small, large = (int8_graph(c, spec, texts) for c in (once, often))
    assert parameters(small) == parameters(large)


def test_one_bias_by_distance_serves_all_layers() -> None:
    config, spec = CONFIGS["relative"], SPECS["ner"]
    weights = random_weights(config, spec)
    for ops in (graph_body(config).cpu, graph_body(config).cuda):
        graph = build_graph(config, spec, weights, ops).graph
        attention = [node for node in graph.node if node.op_type in ("Attention", "PackedAttention")]
        assert len(attention) == config.num_hidden_layers
        assert len({node.input[5] for node in attention}) == 1


@pytest.mark.parametrize("name", DISENTANGLED)
def test_distances_are_read_along_diagonals_and_by_index_at_few_heads_only(name: str) -> None:
    for head, gathers in (
        ("ner", 0),
        ("classification", len(DebertaBody.of(DISENTANGLED[name].body).pos_att_type)),
    ):
        config, spec = DISENTANGLED[name], SPECS[head]
        graph = build_graph(config, spec, random_weights(config, spec), graph_body(config).cpu).graph
        assert sum(node.op_type == "GatherElements" for node in graph.node) == gathers


def test_only_a_bias_by_distance_is_given_to_packed_attention() -> None:
    spec = SPECS["ner"]
    for name in CONFIGS.keys() - DISENTANGLED.keys():
        config = CONFIGS[name]
        graph = build_graph(config, spec, random_weights(config, spec), graph_body(config).cuda).graph
        counts = {len(node.input) for node in graph.node if node.op_type == "PackedAttention"}
        assert counts == ({6} if name == "relative" else {5})


def test_the_manifest_says_what_attention_costs() -> None:
    modern = BertConfig.from_dict(
        {"model_type": "modernbert", "vocab_size": 60, "hidden_size": 64, "num_attention_heads": 1}
        | {"num_hidden_layers": 4, "intermediate_size": 40, "pad_token_id": 0}
    )
    # Of four layers the first and the last see the whole text; blocks have 64 tokens.
    assert attention_cost(modern) == {"window_layers": 2, "window_tokens": 384}
    assert max_pairs(modern) == 8192**2
    assert max_pairs(DISENTANGLED["buckets"]) == 8192**2 // 3
    assert max_pairs(CONFIGS["narrow"]) == 0
    assert attention_cost(DISENTANGLED["buckets"]) == {"scores": 3}
    assert attention_cost(CONFIGS["narrow"]) == {}
