"""Folders of SparseEncoder: exported as sentence-transformers reads them, or refused with the value and the rule.

Vectors are compared with those of sentence-transformers 6.2.0 where BERT_SENTENCE_TRANSFORMERS_PYTHON is the Python of an
environment that has it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.bundle import QUERY_WEIGHTS, read_bundle
from bert.checkpoint.hub import wanted_files
from bert.checkpoint.weights import read_checkpoint
from bert.errors import BertError, CheckpointError
from bert.tasks.registry import TASKS
from bert.tasks.vectors.sparse import decode, query
from model_export.cli import main
from model_export.verify.precision import Fp32
from model_export.verify.texts import make_text, shipped_texts, texts_file
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader, opened
from tests.support.checkpoints import SPECS, vocabulary, write_checkpoint
from tests.support.families import farthest, write_relative
from tests.support.published import as_published, read, write_embedder
from tests.support.sparse_folders import QUERY, largest, table, write_sparse

PYTHON = os.environ.get("BERT_SENTENCE_TRANSFORMERS_PYTHON", "")
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"activation_function": "log1p_relu"},
    "distilbert": {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"},
    "modernbert": {},
    "bert-router": {"router": "weights"},
    "distilbert-router": {"router": "idf", "activation_function": "log1p_relu"},
}


def exported(folder: Path, out: Path, *more: str) -> Path:
    assert main(["--checkpoint", str(folder), "--out", str(out), "--precision", "fp32", *more]) == 0
    return out


def test_a_masked_language_model_gives_sparse_vectors_where_that_is_asked_for(tmp_path: Path) -> None:
    write_relative(tmp_path / "m", "bert", SPECS["fill_mask"])
    spec = read_bundle(exported(tmp_path / "m", tmp_path / "b", "--task", "sparse")).manifest.task
    assert (spec.task, spec.sparse_activation, spec.query_weights) == ("sparse", "relu", False)
    assert read(tmp_path / "m").spec.task == "fill_mask"


@pytest.mark.parametrize("form", ["plain", "MLMTransformer", "router", "nested", "idf"])
def test_a_folder_of_sparse_encoder_is_read(form: str, tmp_path: Path) -> None:
    has_table = form in ("router", "nested", "idf")
    model = write_sparse(
        tmp_path / "m",
        "distilbert",
        modules=["MLMTransformer" if form == "MLMTransformer" else "Transformer", "SpladePooling"],
        queries=QUERY if has_table else None,
        nested=form == "nested",
        idf=form == "idf",
        pooling={"activation_function": "log1p_relu"},
    )
    checkpoint = read(tmp_path / "m")
    assert (checkpoint.spec.task, checkpoint.spec.sparse_activation) == ("sparse", "log1p_relu")
    assert checkpoint.spec.query_weights == has_table
    texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)[::6]
    expected = [largest(model, text).numpy() for text in texts]
    assert farthest(Fp32(checkpoint, ()).packed(texts), expected) < 1e-4
    if has_table:
        np.testing.assert_array_equal(checkpoint.weights["query.weight"], table())
        assert any(name.startswith("query_0_") for name in checkpoint.sources["files"])


def test_the_table_of_queries_travels_with_the_bundle(tmp_path: Path) -> None:
    write_sparse(tmp_path / "m", queries=QUERY)
    bundle = exported(tmp_path / "m", tmp_path / "b")
    found = find_bundles([bundle])
    (model,) = opened(BundleLoader(found, threads=1).load(1))
    np.testing.assert_array_equal(model.query_weights, table())
    (bundle / QUERY_WEIGHTS).unlink()
    with pytest.raises(BertError, match=f"{QUERY_WEIGHTS} is missing"):
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"pooling": {"pooling_strategy": "sum"}}, "pooling_strategy is 'sum'; exported is 'max'"),
        (
            {"pooling": {"activation_function": "tanh"}},
            "activation_function is 'tanh'; exported are relu and",
        ),
        (
            {"modules": ["Transformer", "SparseAutoEncoder"]},
            "the modules Transformer SparseAutoEncoder for doc",
        ),
        (
            {"queries": ["Transformer", "SpladePooling"]},
            "the modules Transformer SpladePooling for queries; exp",
        ),
        (
            {"sentence_bert_config": {"transformer_task": "feature-extraction"}},
            "'feature-extraction'; exported",
        ),
    ],
)
def test_other_parts_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_sparse(tmp_path, **values)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("router", "reason"),
    [
        ({"structure": {"query": []}, "types": {}}, "has the routes query; exported are query and document"),
        ({}, "lacks 'structure' or 'types'"),
    ],
)
def test_other_routers_are_refused(router: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_sparse(tmp_path, queries=QUERY, router_config=router)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"a": "much"}, "the weight of 'a' is 'much', which is not a number"),
        ({"a": 10**400}, "the weight of 'a' is 1000.*, which is not a finite float32"),
        ({"a": float("nan")}, "the weight of 'a' is nan, which is not a finite float32"),
        (
            {"a": -0.5},
            "the weight of the piece with id [0-9]+ is -0.5; weights of queries must be at least 0",
        ),
        (["a"], "holds list, not an object"),
        (None, r"idf\.json is missing: it holds the weights of queries"),
    ],
)
def test_other_weights_of_queries_are_refused(weights: Any, reason: str, tmp_path: Path) -> None:
    write_sparse(tmp_path, queries=QUERY, idf=True)
    (tmp_path / "idf.json").unlink()
    if weights is not None:
        (tmp_path / "idf.json").write_text(json.dumps(weights))
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


def test_a_model_without_the_head_of_a_masked_language_model_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "plain", SPECS["similarity"])
    as_published(tmp_path / "plain")
    with pytest.raises(
        CheckpointError, match=r"no tensor 'cls\.predictions\..*', which a sparse model needs"
    ):
        read(tmp_path / "plain", task="sparse")
    write_embedder(tmp_path / "dense")
    with pytest.raises(
        CheckpointError, match=r"task is 'sparse', as was asked, and .* own files say similarity"
    ):
        read(tmp_path / "dense", task="sparse")


def test_the_files_of_a_router_are_downloaded() -> None:
    files = [
        *("router_config.json", "modules.json", "model.safetensors", "idf.json", "README.md", "run.py"),
        *("query_0_SparseStaticEmbedding/config.json", "query_0_SparseStaticEmbedding/model.safetensors"),
        *("document_0_Transformer/tokenizer.json", "document_0_Transformer/pytorch_model.bin"),
        *("document_1_SpladePooling/config.json", "document_1_SpladePooling/code.py"),
    ]
    assert set(files) - set(wanted_files(files)) == {
        "README.md",
        "run.py",
        "document_1_SpladePooling/code.py",
    }


@pytest.mark.skipif(not PYTHON, reason="BERT_SENTENCE_TRANSFORMERS_PYTHON names no Python that has 6.2.0")
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    """Heads of BERT, RoBERTa, DistilBERT and ModernBERT, with and without a router: 60 texts, of both sides."""
    shipped = texts_file()
    texts = [*shipped["texts"], *(row["context"] for row in shipped["questions"]), "", "東京 🙂 naïve"]
    asked = {"texts": texts, "kinds": KINDS, "vocabulary": vocabulary()}
    script = Path(__file__).parents[2] / "support" / "sparse_models.py"
    command = [PYTHON, "-P", str(script), str(tmp_path)]
    subprocess.run(command, input=json.dumps(asked), text=True, check=True, capture_output=True, timeout=600)
    count = 0
    for name, kind in KINDS.items():
        checkpoint = read_checkpoint(tmp_path / name)
        spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
        assert spec.query_weights == ("router" in kind)
        graph, expected = Fp32(checkpoint, ()), json.loads((tmp_path / name / "expected.json").read_text())
        before = spec.prompts.get(spec.default_prompt_name, "")
        pieces = tokenizer.pieces([before + text for text in texts])
        encoded = [
            make_text(tokenizer.single(each, spec.max_tokens, truncate=True), "sparse") for each in pieces
        ]
        found = [decode(TASKS["sparse"].shorten(rows), spec) for rows in graph.packed(encoded)]
        if spec.query_weights:
            found += [
                query(each.ids[: spec.max_tokens], checkpoint.weights["query.weight"]) for each in pieces
            ]
        for (indices, weights), theirs in zip(found, expected, strict=True):
            ours, wanted = (np.zeros(checkpoint.config.vocab_size) for _ in range(2))
            ours[indices], wanted[theirs[0]] = weights, theirs[1]
            np.testing.assert_allclose(ours, wanted, atol=1e-5, rtol=1e-5)
            count += len(indices)
    assert count > 10_000
