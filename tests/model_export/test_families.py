"""Checkpoints of BERT's relatives from the folder to the bundle: their graphs answer as `transformers` does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bert.bundle import read_bundle
from bert.checkpoint.description import Stated
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.graph_inputs import Packer
from model_export.cli import main
from model_export.graph.bodies import graph_body
from model_export.graph.build import build_graph
from model_export.reference import Reference
from model_export.verify.fp16_reference import run_flat
from model_export.verify.precision import Fp32, GraphSession, Int8
from model_export.verify.texts import EncodedText, shipped_texts
from tests.support.checkpoints import SPECS, random_text
from tests.support.families import CLASSES, farthest, has_class, their_answers, write_relative

HEADS = ["classification", "ner", "qa", "multiple_choice", "similarity", "fill_mask"]
GRAPHS = [name for name in CLASSES if name not in ("xlm-roberta", "camembert")]
"""Families with a graph of their own: RoBERTa's is that of two more."""
SERVED = [
    *((name, family) for name in HEADS for family in GRAPHS if has_class(family, SPECS[name].task)),
    *((name, family) for name in ("pair", "cls") for family in ("roberta", "electra")),
]
IN_8_BITS = [
    *((name, family) for name in ("classification", "ner") for family in GRAPHS),
    *(("qa", "roberta"), ("similarity", "distilbert"), ("similarity", "modernbert")),
]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "xlm-roberta": ("xlm-roberta", {}),
    "camembert": ("camembert", {}),
    "electra as wide as its embeddings": ("electra", {"embedding_size": 32}),
    "electra with relu": ("electra", {"hidden_act": "relu"}),
    "albert, one group": ("albert", {"num_hidden_groups": 1, "hidden_act": "gelu"}),
    "albert, two inner layers": ("albert", {"inner_group_num": 2}),
    "albert as wide as its embeddings": ("albert", {"embedding_size": 32}),
    "mpnet, three heads": ("mpnet", {"hidden_size": 36, "num_attention_heads": 3}),
    "deberta with positions": ("deberta", {"position_biased_input": True, "type_vocab_size": 2}),
    "deberta, queries only": ("deberta", {"pos_att_type": "c2p", "embedding_size": 24}),
    "deberta-v2 as deberta": ("deberta-v2", {"position_buckets": -1, "share_att_key": False}),
    "deberta-v2, keys only": (
        "deberta-v2",
        {"pos_att_type": ["p2c"], "share_att_key": False, "norm_rel_ebd": "none", "embedding_size": 24},
    ),
    "deberta-v2 with a convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta-v2, wide convolution": (
        "deberta-v2",
        {"conv_kernel_size": 5, "conv_groups": 2, "num_hidden_layers": 1, "position_buckets": 32},
    ),
    "nomic_bert": ("nomic_bert", {}),
    "gte with segments, scaled": (
        "gte",
        {
            "type_vocab_size": 2,
            "rope_parameters": {"rope_type": "linear", "factor": 1.3, "rope_theta": 900.0},
        },
    ),
}
"""Shapes that a family's usual one leaves out."""
SHAPES_BY_HEAD = [
    *((shape, "classification") for shape in SHAPES),
    # DeBERTa reads its distances otherwise where many positions are asked for; the others' narrow embeddings decode.
    *((shape, "ner" if shape.startswith("deberta") else "fill_mask") for shape in SHAPES),
    *(
        (shape, "fill_mask")
        for shape in SHAPES
        if "embedding_size" in SHAPES[shape][1] and "deberta" in shape
    ),
]
OPTIONS = {"pair": ["--pair"], "cls": ["--pooling", "cls"]}
STATED = {"pair": Stated(pair=True), "cls": Stated(pooling="cls")}


def read(folder: Path, name: str) -> tuple[Checkpoint, list[EncodedText]]:
    checkpoint = read_checkpoint(folder, stated=STATED.get(name))
    texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)
    return checkpoint, texts[::6]


@pytest.mark.parametrize(("name", "model_type"), SERVED)
def test_every_form_answers_as_transformers(name: str, model_type: str, tmp_path: Path) -> None:
    """The reference, half precision, and the graph that is exported."""
    model = write_relative(tmp_path / "m", model_type, SPECS[name])
    checkpoint, texts = read(tmp_path / "m", name)
    spec = checkpoint.spec
    theirs = [their_answers(model, spec, text) for text in texts]
    reference = Reference(checkpoint.config, spec, checkpoint.weights)
    ours = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]
    assert farthest(ours, theirs) < 1e-5
    written = build_graph(checkpoint.config, spec, checkpoint.weights, graph_body(checkpoint.config).cuda)
    for answer, rounded in zip(theirs, run_flat(written, texts), strict=True):
        assert np.allclose(rounded, answer, atol=2e-2, rtol=2e-2)
    arguments = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    assert main([*arguments, *OPTIONS.get(name, ())]) == 0
    assert read_bundle(tmp_path / "b").manifest.task == spec
    session = GraphSession(onnx.load(tmp_path / "b" / "model.onnx"), Packer("rows"), threads=1)
    assert farthest(session.packed(texts), theirs) < 1e-5


@pytest.mark.parametrize(("name", "model_type"), IN_8_BITS)
def test_8_bits_stay_near_the_checkpoint(name: str, model_type: str, tmp_path: Path) -> None:
    model = write_relative(tmp_path, model_type, SPECS[name])
    checkpoint, texts = read(tmp_path, name)
    exported = Int8(checkpoint, shipped_texts(checkpoint.tokenizer, checkpoint.spec))
    found = np.concatenate(exported.packed(texts))
    theirs = np.concatenate([their_answers(model, checkpoint.spec, text) for text in texts])
    assert np.linalg.norm(found - theirs) < 0.1 * np.linalg.norm(theirs)


def test_long_rows_of_rotations_answer_as_transformers(tmp_path: Path) -> None:
    spec = replace(SPECS["similarity"], max_tokens=640)
    model = write_relative(tmp_path, "nomic_bert", spec, max_position_embeddings=640)
    checkpoint, texts = read_checkpoint(tmp_path), [random_text(spec, tokens) for tokens in (640, 300, 7)]
    theirs = [their_answers(model, spec, text) for text in texts]
    assert farthest(theirs, Fp32(checkpoint, ()).packed(texts)) < 1e-5
    eight_bits = Int8(checkpoint, texts)
    assert farthest(eight_bits.alone(texts), eight_bits.packed(texts)) < 1e-6


@pytest.mark.parametrize(("shape", "name"), SHAPES_BY_HEAD)
def test_every_shape_answers_as_transformers_at_full_length_and_among_others(
    shape: str, name: str, tmp_path: Path
) -> None:
    model_type, changes = SHAPES[shape]
    model = write_relative(tmp_path, model_type, SPECS[name], **changes)
    checkpoint, texts = read(tmp_path, name)
    spec = checkpoint.spec
    texts = [*texts, random_text(spec, 128)]
    exported, theirs = Fp32(checkpoint, ()), [their_answers(model, spec, text) for text in texts]
    for found in (exported.alone(texts), exported.packed(texts)):
        assert farthest(theirs, found) < 1e-4
    eight_bits = Int8(checkpoint, texts)
    alone, packed = eight_bits.alone(texts), eight_bits.packed(texts)
    assert all(np.array_equal(a, b) for a, b in zip(alone, packed, strict=True))
    a, b = np.concatenate(theirs), np.concatenate(alone)
    assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a)
