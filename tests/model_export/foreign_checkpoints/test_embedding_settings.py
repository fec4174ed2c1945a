"""Settings of sentence-transformers: modules, lengths, prompts and comparisons are honoured, or refused."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from bert.errors import CheckpointError
from tests.support.published import (
    MEAN,
    MODULES,
    read,
    write_embedder,
)


@pytest.mark.parametrize(
    ("modules", "files", "reason"),
    [
        ([*MODULES[:2], "LSTM"], {}, r"modules.json has a module 'LSTM' \(2_LSTM\), which is not exported"),
        (["Transformer"], {}, "modules.json has the modules Transformer; exported are"),
        (["Transformer", "Normalize", "Pooling"], {}, "has the modules Transformer Normalize Pooling"),
        (["Transformer", "Pooling", "Normalize", "Dense"], {}, "Transformer Pooling Normalize Dense"),
        (["WordEmbeddings", "Pooling"], {}, "has a module 'WordEmbeddings'"),
        (
            MODULES,
            {"pooling": {"pooling_mode_first_tokens": True}},
            "1_Pooling/config.json: the pooling is 'first_tokens'; known are cls, max",
        ),
        (MODULES, {"pooling": {"pooling_mode": "splade"}}, "the pooling is 'splade'"),
        (
            MODULES,
            {
                "pooling": {**MEAN, "include_prompt": False},
                "config_sentence_transformers": {"prompts": {"q": "query: "}},
            },
            "include_prompt is false, so the pooling leaves out the prompt's tokens",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"max_seq_length": "long"}},
            "max_seq_length is 'long', which is not a whole number",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"transformer_task": "fill-mask"}},
            "transformer_task is 'fill-mask'",
        ),
        (MODULES, {"sentence_bert_config": {"query_length": 32}}, "query_length is 32, which is not known"),
        (
            MODULES,
            {
                "sentence_bert_config": {
                    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}
                }
            },
            "exported is 'last_hidden_state'",
        ),
        (
            MODULES,
            {"pooling": {**MEAN, "layers": [1]}},
            r"1_Pooling/config.json: layers is \[1\], which is not kn",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"q": "query: "}, "default_prompt_name": "p"}},
            "default_prompt_name is 'p'; known are q",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"q": 5}}},
            "prompts must be texts by name: 'q'",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"modality_config": "x"}},
            r"modality_config \('x'\) must be an obj",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"modality_config": [1]}},
            r"modality_config \(\[1\]\) must be an",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"\ud800": "a"}}},
            r"'\\ud800' among the labels",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"a": "\udfff"}}},
            r"'\\udfff' among the labels",
        ),
        (MODULES, {"config_sentence_transformers": {"prompts": ["q"]}}, r"prompts are \['q'\], and no texts"),
        (
            MODULES[:2],
            {"config_sentence_transformers": {"similarity_fn_name": "euclidean"}},
            "similarity_fn_name is 'euclidean', and the service compares by cosine or dot",
        ),
    ],
)
def test_what_would_give_other_embeddings_is_refused(
    modules: list[str], files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, modules, **files)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize("path", ["../1_Pooling", ".."])
def test_modules_outside_the_folder_are_refused(path: str, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))
    modules[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=f"names {re.escape(repr(path))}, which is not a folder beside it"
    ):
        read(tmp_path)


def test_lower_case_is_built_into_a_tokenizer_that_keeps_capitals(tmp_path: Path) -> None:
    lower = {"do_lower_case": True}
    write_embedder(tmp_path, sentence_bert_config=lower, tokenizer_config=lower)
    uncased = read(tmp_path).tokenizer
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    found = read(tmp_path).tokenizer
    text = "THE Film of 1999"
    assert found.ids([text]) == found.ids([text.lower()]) == uncased.ids([text])
    (pieces,) = found.pieces([text])
    assert [text[start:end] for start, end in pieces.offsets.tolist()][:2] != []
    assert pieces.offsets[-1, 1] == len(text)
    (tmp_path / "sentence_bert_config.json").unlink()
    plain = read(tmp_path).tokenizer
    assert plain.ids([text]) != plain.ids([text.lower()])


def test_the_files_of_sentence_transformers_6_are_read(tmp_path: Path) -> None:
    """The files are those that version 6.2.0 writes."""
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    write_embedder(
        tmp_path,
        pooling={"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True},
        sentence_bert_config={
            "transformer_task": "feature-extraction",
            "modality_config": {"text": text},
            "module_output_name": "token_embeddings",
        },
        config_sentence_transformers={
            "model_type": "SentenceTransformer",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    (tmp_path / "2_Normalize").mkdir()
    (tmp_path / "2_Normalize" / "config.json").write_text(json.dumps(names), encoding="utf-8")
    assert read(tmp_path).spec.normalize and read(tmp_path).spec.pooling == "cls"
    names["module_input_name"] = "token_embeddings"
    (tmp_path / "2_Normalize" / "config.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"2_Normalize/config.json: module_input_name is 'token_embeddings'"
    ):
        read(tmp_path)


def test_prompts_and_dot_products_are_recorded(tmp_path: Path) -> None:
    settings = {
        "prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
    }
    write_embedder(tmp_path / "unit", config_sentence_transformers=settings)
    found = read(tmp_path / "unit")
    assert found.remarks == ("requests may name a prompt: query",)
    assert (found.spec.prompts, found.spec.default_prompt_name) == (settings["prompts"], "query")
    assert found.spec.similarity == "cosine"  # the same for vectors of length 1
    write_embedder(tmp_path / "plain", MODULES[:2], config_sentence_transformers=settings)
    assert read(tmp_path / "plain").spec.similarity == "dot"


@pytest.mark.parametrize(
    ("tokenizer", "lengths", "expected"),
    [
        (None, None, 128),
        (math.inf, None, 128),
        (64, None, 64),
        (64, 32, 32),
        (10**30, 500, 128),
        (512, 96, 96),
    ],
)
def test_the_shortest_length_counts(
    tokenizer: int | None, lengths: int | None, expected: int, tmp_path: Path
) -> None:
    files: dict[str, Any] = {
        "tokenizer_config": {"model_max_length": tokenizer} if tokenizer else {},
        "sentence_bert_config": {"max_seq_length": lengths},
    }
    write_embedder(tmp_path, **files)
    assert read(tmp_path).spec.max_tokens == expected
