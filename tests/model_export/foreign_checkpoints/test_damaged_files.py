"""Files of a checkpoint that are damaged or hold impossible values: refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bert.errors import CheckpointError
from tests.support.published import (
    classifier,
    read,
    write_embedder,
)

DEEP, LONG = '{"a":' * 100_000 + "1" + "}" * 100_000, '{"a": ' + "9" * 5_000 + "}"


READ = (
    "config", "modules", "config_sentence_transformers", "sentence_bert_config", "tokenizer_config",
    "special_tokens_map", "1_Pooling/config", "task", "model.safetensors.index",
)  # fmt: skip


@pytest.mark.parametrize("content", [DEEP, LONG, "{", "\0"], ids=["deep", "long", "cut", "nul"])
@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / f"{name}.json").write_text(content, encoding="utf-8")
    if name.endswith("index"):
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"{name}.json is not JSON"):
        read(tmp_path)


def test_a_shard_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"a": "x" * 5_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"has a shard 'x{61}\.\.\.' that cannot be read: File name too"
    ):
        read(tmp_path)


@pytest.mark.parametrize("length", ["512", 0, -5, math.nan, -math.inf, True, [512]])
def test_a_tokenizer_length_that_is_none_is_refused(length: object, tmp_path: Path) -> None:
    write_embedder(tmp_path, tokenizer_config={"model_max_length": length})
    with pytest.raises(CheckpointError, match=r"model_max_length \(.*\) must be a number of at least 3"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"problem_type": "foo"},
            "problem_type is 'foo'; known are single_label_classification, multi_label",
        ),
        ({"problem_type": ["regression"]}, r"problem_type is \['regression'\]; known are single_label_"),
        ({"problem_type": {"a": 1}}, "problem_type is {'a': 1}; known are single_label_"),
        ({"architectures": 5}, r"architectures \(5\) must be a list of names of classes"),
        ({"architectures": "BertForMaskedLM"}, r"architectures \('BertForMaskedLM'\) must be a list of"),
        ({"architectures": {"BertForMaskedLM": 1}}, "must be a list of names of classes"),
        ({"architectures": [None]}, r"architectures \(\[None\]\) must be a list of names of classes"),
        ({"id2label": {"0": "a", "1": ""}}, "label 1 is empty; name it"),
        (
            {"id2label": {"0": "a", "1": "\ud800"}},
            r"'\\ud800' among the labels and prompts is not valid Unicode",
        ),
        ({"layer_norm_eps": 10**400}, r"layer_norm_eps \(10*\) must be a number"),
    ],
)
def test_values_of_another_kind_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read(classifier(tmp_path, ["a", "b"], **values))


@pytest.mark.parametrize("values", [{"problem_type": None}, {"architectures": None}, {"architectures": []}])
def test_values_that_are_not_stated_are_found_otherwise(values: dict[str, Any], tmp_path: Path) -> None:
    found = read(classifier(tmp_path, ["a", "b"], **values)).spec
    assert (found.task, found.problem_type) == ("classification", "single_label")
