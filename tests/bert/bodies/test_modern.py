"""ModernBERT's `config.json`, in the forms that the hub has."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import transformers

from bert.bodies.modern import ModernBody
from bert.checkpoint.weights import read_checkpoint
from bert.config import BertConfig
from bert.errors import ConfigError, UnsupportedModelError
from tests.support.checkpoints import SPECS
from tests.support.families import write_relative

OLD = {
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 80_000.0,
    "local_rope_theta": 500.0,
    "layer_norm_eps": 1e-12,
    "norm_eps": 1e-4,
    "classifier_activation": "silu",
    "classifiers_size": [3],
    "reference_compile": True,
}
"""A file of transformers 4, with keys that change nothing."""


def read(**changes: Any) -> BertConfig:
    return BertConfig.from_dict({"model_type": "modernbert", **changes})


def body_of(config: BertConfig) -> ModernBody:
    return ModernBody.of(config.body)


def test_the_old_form_is_read() -> None:
    config = BertConfig.from_dict(OLD)
    body = body_of(config)
    assert (body.sliding, body.full_theta, body.sliding_theta) == (
        (False, True, False, True),
        80_000.0,
        500.0,
    )
    assert (config.layer_norm_eps, body.classifier_activation, config.mlm_act) == (1e-4, "silu", "silu")
    assert (body.window, config.max_position_embeddings, config.is_plain_body) == (64, 8192, False)


def test_the_new_form_says_the_same() -> None:
    old = BertConfig.from_dict(OLD)
    assert BertConfig.from_dict(transformers.ModernBertConfig(**OLD).to_dict()) == old
    assert BertConfig.from_dict(old.to_dict()) == old


def test_both_forms_are_written_where_the_old_one_can_say_it() -> None:
    written = BertConfig.from_dict(OLD).to_dict()
    assert written.items() >= {key: OLD[key] for key in list(OLD)[1:5]}.items()
    assert not {"position_embedding_type", "type_vocab_size", "hidden_act", "layer_norm_eps"} & written.keys()
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    mixed = read(num_hidden_layers=3, layer_types=kinds).to_dict()
    assert mixed["layer_types"] == kinds
    assert "global_attn_every_n_layers" not in mixed


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, UnsupportedModelError, "'yarn'"),
        ({"rope_parameters": {"full_attention": {"type": "linear"}}}, UnsupportedModelError, "'linear'"),
        ({"rope_scaling": {"factor": 2}}, UnsupportedModelError, "rope_scaling"),
        ({"rope_parameters": [1]}, ConfigError, "rope_parameters"),
        ({"rope_parameters": {"sliding_attention": 1}}, ConfigError, "rope_parameters.sliding_attention"),
        ({"global_rope_theta": "x"}, ConfigError, "rope_theta"),
        ({"layer_types": ["full_attention"]}, ConfigError, "layer_types has 1 entries"),
        ({"layer_types": ["linear_attention"] * 22}, ConfigError, "layer_types"),
        ({"global_attn_every_n_layers": 0}, ConfigError, "global_attn_every_n_layers"),
        ({"num_hidden_layers": 10**9}, ConfigError, "layers"),
        ({"num_hidden_layers": "x"}, ConfigError, "num_hidden_layers"),
        ({"local_attention": -1}, ConfigError, "local_attention"),
        ({"norm_bias": "no"}, ConfigError, "norm_bias"),
        ({"classifier_pooling": "max"}, ConfigError, "classifier_pooling"),
        ({"classifier_activation": "tanhshrink"}, ConfigError, "classifier_activation"),
        ({"classifier_activation": ["gelu"]}, ConfigError, "classifier_activation"),
        ({"embedding_dropout": 1}, ConfigError, "embedding_dropout"),
        ({"hidden_size": 36}, ConfigError, "odd size"),
    ],
)
def test_what_is_not_read_is_refused(changes: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        read(**changes)


def test_without_a_class_the_tensors_tell_the_task(tmp_path: Path) -> None:
    for name in ("classification", "ner", "fill_mask"):
        folder = tmp_path / name
        write_relative(folder, "modernbert", SPECS[name])
        file = folder / "config.json"
        values = json.loads(file.read_text(encoding="utf-8"))
        del values["architectures"]
        file.write_text(json.dumps(values), encoding="utf-8")
        assert read_checkpoint(folder).spec.task == name


def test_a_decoder_that_a_file_repeats_is_the_embedding(tmp_path: Path) -> None:
    write_relative(tmp_path, "modernbert", SPECS["fill_mask"])
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"]
    safetensors.numpy.save_file(tensors, file)
    assert read_checkpoint(tmp_path).spec.task == "fill_mask"
