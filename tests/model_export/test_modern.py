"""ModernBERT's attention in rows of every width: windows, blocks and their edges, up to 8,192 tokens."""

import multiprocessing
import resource
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.packing import CostModel, plan_runs
from bert.tasks.registry import TASKS
from model_export.graph.bodies import graph_body
from model_export.graph.build import build_graph
from model_export.graph.graph_checks import check_attention, check_form
from model_export.graph.modern.cpu_ops import SHORT
from model_export.reference import Floats, Reference
from model_export.verify.fp16_reference import run_flat
from model_export.verify.precision import Fp32, Int8
from model_export.verify.texts import LONG_TOKENS, shipped_texts
from tests.support.checkpoints import SPECS, random_text
from tests.support.families import farthest, their_answers, write_relative

LENGTHS = (5, 6, 7, 8, 12, 13, 14, 63, 64, 65, 127, 129, 192, 193, 255, 256, 257, 300, 520, 700)
"""Around the window of 6, blocks of 64, the width from which on rows are long, and several blocks."""
LONGEST = 8192
WITHOUT_BIASES = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"), False),
    "num_hidden_layers": 3,
    "classifier_pooling": "mean",
}
SHAPES: dict[str, dict[str, Any]] = {
    "full last": {},
    "sliding last": {"num_hidden_layers": 3},
    "without biases, mean": WITHOUT_BIASES,
    "all sliding": {"layer_types": ["sliding_attention"] * 2, "num_hidden_layers": 2},
    "all full": {"global_attn_every_n_layers": 1, "num_hidden_layers": 2},
    "heads of 64": {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2},
    "a window over several products": {"local_attention": 300, "num_attention_heads": 2, "hidden_size": 128},
}


def checkpoint_of(folder: Path, name: str, **changes: Any) -> tuple[torch.nn.Module, Checkpoint]:
    model = write_relative(
        folder, "modernbert", SPECS[name], **{"max_position_embeddings": LONGEST, **changes}
    )
    return model, read_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [*(("ner", shape) for shape in SHAPES)]
    + [("classification", shape) for shape in ("full last", "sliding last", "without biases, mean")],
)
def test_every_length_answers_as_transformers_alone_and_among_others(
    name: str, shape: str, tmp_path: Path
) -> None:
    model, checkpoint = checkpoint_of(tmp_path, name, **SHAPES[shape])
    texts = [random_text(checkpoint.spec, tokens, seed=tokens) for tokens in LENGTHS]
    theirs = [their_answers(model, checkpoint.spec, text) for text in texts]
    exported = Fp32(checkpoint, ())
    check_form(exported.model)
    check_attention(exported.model, checkpoint.config.num_hidden_layers)
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    ours = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]
    for found in (ours, exported.alone(texts), exported.packed(texts)):
        assert farthest(theirs, found) < 1e-4


@pytest.mark.parametrize("name", ["multiple_choice", "qa", "fill_mask", "similarity"])
def test_the_other_heads_read_long_rows(name: str, tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of(tmp_path, name, classifier_pooling="mean")
    texts = [random_text(checkpoint.spec, tokens, seed=tokens) for tokens in (20, 300, 700)]
    theirs = [their_answers(model, checkpoint.spec, text) for text in texts]
    exported = Fp32(checkpoint, ())
    for found in (exported.alone(texts), exported.packed(texts)):
        assert farthest(theirs, found) < 1e-4


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_in_8_bits_no_text_depends_on_its_neighbours(changes: dict[str, Any], tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of(tmp_path, "ner", **changes)
    texts = [random_text(checkpoint.spec, tokens, seed=tokens) for tokens in LENGTHS]
    exported = Int8(checkpoint, texts[::2])
    alone, packed = exported.alone(texts), exported.packed(texts)
    assert all(np.array_equal(a, b) for a, b in zip(alone, packed, strict=True))
    theirs = np.concatenate([their_answers(model, checkpoint.spec, text) for text in texts])
    assert np.linalg.norm(np.concatenate(alone) - theirs) < 0.1 * np.linalg.norm(theirs)


@pytest.mark.parametrize("changes", [{}, WITHOUT_BIASES], ids=["biases", "none"])
@pytest.mark.parametrize("name", ["classification", "ner"])
def test_half_precision_has_the_window_too(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of(tmp_path, name, **changes)
    texts = [random_text(checkpoint.spec, tokens, seed=tokens) for tokens in (2, 7, 8, 30)]
    written = build_graph(
        checkpoint.config, checkpoint.spec, checkpoint.weights, graph_body(checkpoint.config).cuda
    )
    for text, found in zip(texts, run_flat(written, texts), strict=True):
        assert np.allclose(found, their_answers(model, checkpoint.spec, text), atol=2e-2, rtol=2e-2)


def run_longest(folder: str) -> tuple[Floats, float]:
    """Return the output for 8,192 tokens, and by how many bytes running them raised the memory's peak."""
    checkpoint = read_checkpoint(Path(folder))
    text, exported = random_text(checkpoint.spec, LONGEST), Fp32(checkpoint, ())
    exported.alone([random_text(checkpoint.spec, 300)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = exported.alone([text])
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return found, grown


def test_the_longest_text_takes_memory_by_its_length(tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of(tmp_path, "ner", num_hidden_layers=2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found, grown = pool.apply(run_longest, (str(tmp_path),))
    theirs = their_answers(model, checkpoint.spec, random_text(checkpoint.spec, LONGEST))
    assert float(np.abs(found - theirs).max()) < 1e-4
    # The scores of all pairs would be 1.07 GB for four heads, and their mask 0.27.
    assert grown < 200e6


@pytest.mark.parametrize("name", ["ner", "qa"])
def test_a_long_document_is_one_window(name: str, tmp_path: Path) -> None:
    _, checkpoint = checkpoint_of(tmp_path, name)
    tokenizer, spec = checkpoint.tokenizer, checkpoint.spec
    assert spec.max_tokens == LONGEST
    document = tokenizer.pieces(["where", "Ada lived in a warm London. " * 500])
    windows = TASKS[name].sample(tokenizer, document[-2 if name == "qa" else -1 :], spec)
    assert [len(window) > 3000 for window in windows] == [True]


@pytest.mark.parametrize("name", SPECS)
def test_an_export_is_verified_on_a_text_in_long_rows_too(name: str, tmp_path: Path) -> None:
    _, checkpoint = checkpoint_of(tmp_path, name)
    spec = replace(SPECS[name], max_tokens=LONGEST)
    assert max(SHORT.values()) < max(map(len, shipped_texts(checkpoint.tokenizer, spec))) <= LONG_TOKENS
    assert max(map(len, shipped_texts(checkpoint.tokenizer, SPECS[name]))) <= 128


def test_a_batch_of_long_and_short_texts_is_planned() -> None:
    lengths = [LONGEST, *[30] * 50, 2000]
    runs = plan_runs(lengths, CostModel.for_model(768))
    assert sorted(n for run in runs for n in run.texts) == list(range(len(lengths)))
    for run in runs:
        assert run.packing.places <= 1.5 * sum(lengths[n] for n in run.texts)
        placed = sorted(zip(run.packing.starts, run.texts, strict=True))
        assert all(start + lengths[n] <= after for (start, n), (after, _) in pairwise(placed))
