"""BertConfig: what it takes, what it refuses, and that transformers reads the same."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import transformers

from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.families import FAMILIES, REFUSED

BODIES = {family.body for family in FAMILIES.values()}
OF_RELATIVES = {
    "has_segments",
    "embedding_size",
    "num_hidden_groups",
    "inner_group_num",
    "qa_dropout",
    "pooler_hidden_act",
    "pooler_dropout",
    "body",
    *(word for body in BODIES for word in body.words()),
}
"""Fields that only relatives have in their files."""
SHARED = {field.name for field in fields(BertConfig)} - OF_RELATIVES


def written(folder: Path, content: object) -> Path:
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_the_defaults_are_bert_base() -> None:
    theirs = transformers.BertConfig()
    assert all(getattr(BertConfig(), name) == getattr(theirs, name) for name in SHARED)


def test_a_config_of_transformers_is_read_whole() -> None:
    theirs = transformers.BertConfig(hidden_size=48, num_attention_heads=3, hidden_act="relu", vocab_size=77)
    ours = BertConfig.from_dict(theirs.to_dict())
    assert (ours.hidden_size, ours.num_attention_heads, ours.hidden_act, ours.vocab_size) == (
        48,
        3,
        "relu",
        77,
    )
    assert ours.head_size == 16


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    ours = BertConfig(hidden_size=60, num_attention_heads=5, layer_norm_eps=1e-7, type_vocab_size=3)
    theirs = transformers.AutoConfig.from_pretrained(written(tmp_path, ours.to_dict()))
    assert theirs.model_type == "bert"
    assert all(getattr(ours, name) == getattr(theirs, name) for name in SHARED)
    assert not OF_RELATIVES & ours.to_dict().keys()


def test_the_file_or_its_folder_may_be_given(tmp_path: Path) -> None:
    config = BertConfig(num_hidden_layers=3)
    folder = written(tmp_path, config.to_dict())
    assert BertConfig.read(folder) == BertConfig.read(folder / "config.json") == config


def test_the_packaged_config_is_read(minilm: Path) -> None:
    config = BertConfig.read(minilm)
    assert (config.hidden_size, config.num_hidden_layers, config.head_size) == (384, 6, 32)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "t5"}, "model_type is 't5', which is not read: it has a decoder, .*; known are bert"),
        ({"model_type": "bert2"}, "model_type is 'bert2', which is not read; known are bert"),
        ({"model_type": ["bert"]}, "known are bert"),
        ({"pruned_heads": {"0": [1]}}, "'pruned_heads': its layers differ in the number of their attention"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config': its weights are quantised"),
        ({"use_task_id": True}, "an ERNIE that was saved as a BERT: set model_type to 'ernie'"),
        ({"model_type": "bert", "alibi_starting_size": 512}, "positions are ALiBi slopes"),
        ({"auto_map": {"AutoModel": "code.Model"}, "model_type": "bert2"}, "model_type is 'bert2', which is"),
        (
            {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "lora_adaptations": ["a"]},
            "it has an adapter for each task inside, as jina-embeddings-v3 does",
        ),
        ({"model_type": "xlm-roberta", "position_embedding_type": "rotary"}, "'rotary'; plain BERT has"),
        ({"model_type": "jina_embeddings_v3"}, "'jina_embeddings_v3', which is not read: it has an adapter"),
        (
            {"model_type": "eurobert"},
            "'eurobert', which is not read: its positions are rotations and its norms",
        ),
        ({"position_embedding_type": "relative_key"}, "plain BERT has 'absolute'"),
        ({"is_decoder": True}, "an encoder is needed"),
    ],
)
def test_what_is_no_plain_bert_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        BertConfig.from_dict({**BertConfig().to_dict(), **values})


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"num_attention_heads": 7}, r"num_attention_heads \(7\) must divide hidden_size \(768\)"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers .* are over 1000"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers \(0\) must be a whole number"),
        ({"vocab_size": 30522.0}, r"vocab_size \(30522.0\) must be a whole number"),
        ({"type_vocab_size": True}, r"type_vocab_size \(True\)"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; known are gelu, gelu_new, relu, silu, quick_gelu"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob \(1.0\) must be at least 0 and below 1"),
        ({"attention_probs_dropout_prob": "0.1"}, r"attention_probs_dropout_prob \('0.1'\) must be a number"),
        ({"layer_norm_eps": "1e-12"}, r"layer_norm_eps \('1e-12'\) must be a number"),
        ({"layer_norm_eps": 0}, r"layer_norm_eps \(0\) must be above 0"),
        ({"layer_norm_eps": float("nan")}, r"layer_norm_eps \(nan\) must be a number"),
        ({"initializer_range": -0.02}, r"initializer_range \(-0.02\) must be above 0"),
        ({"pad_token_id": -1}, r"pad_token_id \(-1\) must be at least 0 and below vocab_size"),
        ({"pad_token_id": 30522}, r"pad_token_id \(30522\)"),
        ({"pad_token_id": "0"}, r"pad_token_id \('0'\)"),
    ],
)
def test_a_broken_value_is_refused_with_the_rule(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        BertConfig.from_dict(values)


def test_empty_values_of_such_keys_are_read() -> None:
    values: dict[str, Any] = {
        "pruned_heads": {},
        "quantization_config": None,
        "use_task_id": False,
        "is_decoder": False,
    }
    assert BertConfig.from_dict(values) == BertConfig()
    assert BertConfig.from_dict({"model_type": "ernie", "use_task_id": True}).model_type == "ernie"


def test_no_family_is_both_read_and_refused() -> None:
    assert not FAMILIES.keys() & REFUSED.keys()


def test_null_means_the_default_and_other_keys_are_left_out() -> None:
    assert (
        BertConfig.from_dict({"pad_token_id": None, "id2label": {"0": "no"}, "use_cache": True})
        == BertConfig()
    )


def test_a_missing_config_says_what_a_checkpoint_holds(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json is missing: a checkpoint folder holds"):
        BertConfig.read(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'["bert"]'])
def test_a_damaged_config_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json (is not JSON|holds list)"):
        BertConfig.read(tmp_path)
