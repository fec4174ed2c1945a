"""nomic-bert and gte in both forms, as published and as `transformers` has them: one config, the same tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from bert.bodies.rotary import RotaryBody
from bert.checkpoint.weights import read_checkpoint, read_weights
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.families import FAMILIES
from bert.nn.checkpoint import load_into, save_checkpoint
from bert.nn.heads import BertForMaskedLM
from tests.support.checkpoints import SPECS
from tests.support.families import write_relative

NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 3,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu",
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": 2,
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "type_vocab_size": 2,
    "vocab_size": 30528,
}
"""Config of a nomic-bert in the form that nomic-ai publishes."""
NATIVE: dict[str, Any] = {
    "model_type": "nomic_bert",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
"""The same as `transformers` has it."""
GTE: dict[str, Any] = {
    "model_type": "new",
    "architectures": ["NewModel"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
    "position_embedding_type": "rope",
    "rope_theta": 20000,
    "rope_scaling": {"type": "ntk", "factor": 8.0},
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
    "pack_qkv": True,
    "type_vocab_size": 1,
    "vocab_size": 250048,
    "pad_token_id": 1,
}
"""Config of a gte in the form that Alibaba-NLP publishes."""


def test_both_forms_of_a_nomic_config_are_one() -> None:
    config = BertConfig.from_dict(NOMIC)
    assert config == BertConfig.from_dict(NATIVE) == BertConfig.from_dict({**NATIVE, **NOMIC})
    assert (config.max_position_embeddings, config.hidden_act) == (2048, "silu")


def test_scaled_rotations_are_written_in_the_words_of_transformers() -> None:
    config = BertConfig.from_dict(GTE)
    body = RotaryBody.of(config.body)
    assert (body.theta, body.divisor) == (160_000.0, 8.0 ** (2 / 16))
    assert (config.model_type, config.type_vocab_size, config.has_segments) == ("gte", 2, False)
    written = config.to_dict()
    assert written["rope_parameters"] == {
        "rope_type": "linear", "rope_theta": 160_000.0, "factor": 8.0 ** (2 / 16),
    }  # fmt: skip
    assert (
        BertConfig.from_dict(written)
        == config
        == BertConfig.from_dict({**GTE, **written, "model_type": "new"})
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**NOMIC, "num_experts": 8}, "'num_experts': some of its layers are mixtures of experts"),
        ({**NOMIC, "prenorm": True}, "prenorm is True; only False is read"),
        ({**NOMIC, "rotary_emb_interleaved": True}, "rotary_emb_interleaved is True"),
        ({**NOMIC, "rotary_emb_fraction": 0.5}, r"rotary_emb_fraction is 0.5; only 1.0 is read"),
        ({**NOMIC, "activation_function": "gelu"}, "activation_function is 'gelu'; only 'swiglu' is read"),
        ({**NOMIC, "qkv_proj_bias": True}, "qkv_proj_bias is True"),
        ({**NATIVE, **NOMIC, "n_embd": 32}, r"n_embd \(32\) and hidden_size \(64\) differ"),
        ({**NATIVE, "head_dim": 8}, r"head_dim is 8; only hidden_size / num_attention_heads \(16\)"),
        ({**NATIVE, "rope_theta": 7}, "rope_parameters .* rope_theta .* are different rotations"),
        ({**NATIVE, "rope_theta": "7"}, r"rope_theta \('7'\) must be a number"),
        ({**NATIVE, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'; only default"),
        ({**NATIVE, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({**NATIVE, "rope_parameters": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor', which is not"),
        ({**NATIVE, "rope_parameters": [1]}, r"rope_parameters \(\[1\]\) must be an object"),
        ({**NATIVE, "rope_parameters": {"rope_theta": -1}}, r"rope_theta \(-1\) must be a number above 0"),
        ({**NATIVE, "hidden_size": 60, "num_attention_heads": 4, "head_dim": 15}, r"heads of odd size \(15\)"),
        ({**GTE, "logn_attention_scale": True}, "logn_attention_scale is True"),
        ({**GTE, "position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'; only 'rope'"),
        ({**GTE, "layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm'"),
        ({**GTE, "rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.7}}, "rope_scaling has 'mixed_b'"),
        ({**GTE, "rope_scaling": {"type": "ntk"}}, r"rope_scaling.factor \(None\) must be a number"),
        ({**GTE, "rope_scaling": {"type": "ntk", "factor": 0}}, r"rope_scaling.factor \(0\) must be above 0"),
    ],
)  # fmt: skip
def test_what_differs_is_refused_by_name(values: dict[str, Any], reason: str) -> None:
    with pytest.raises((ConfigError, UnsupportedModelError), match=reason):
        BertConfig.from_dict(values)


def test_a_text_longer_than_the_model_was_trained_for_is_refused(tmp_path: Path) -> None:
    write_relative(tmp_path, "nomic_bert", SPECS["similarity"])
    file = tmp_path / "config.json"
    published = {"n_positions": 8192, "rotary_scaling_factor": 2, "max_trained_positions": 64}
    values = json.loads(file.read_text("utf-8")) | published | {"max_position_embeddings": None}
    file.write_text(json.dumps(values), encoding="utf-8")
    assert read_checkpoint(tmp_path).spec.max_tokens == 64
    SPECS["similarity"].write(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"max_tokens \(128\) must be at most the model's positions \(64\)"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("model_type", "prefix"), [("nomic_bert", "bert."), ("gte", "new.")])
@pytest.mark.parametrize("task", ["fill_mask", "classification"])
def test_published_names_and_those_of_transformers_are_the_same_tensors(
    model_type: str, prefix: str, task: str, tmp_path: Path
) -> None:
    model = write_relative(tmp_path / "published", model_type, SPECS[task])
    model.save_pretrained(tmp_path / "native", save_original_format=False)
    published = safetensors.numpy.load_file(tmp_path / "published" / "model.safetensors")
    assert any("qkv" in name for name in map(str.lower, published))
    own = {name.replace(f"{model_type}.", prefix): tensor for name, tensor in published.items()}
    safetensors.numpy.save_file(own, tmp_path / "published" / "model.safetensors")
    found, expected = read_weights(tmp_path / "published"), read_weights(tmp_path / "native")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], tensor) for name, tensor in expected.items())


def test_code_of_a_known_family_is_told_and_not_run(tmp_path: Path) -> None:
    write_relative(tmp_path, "gte", SPECS["classification"])
    file = tmp_path / "config.json"
    code = {"AutoModel": "modeling.NewModel", "AutoConfig": "configuration.NewConfig"}
    published = {"model_type": "new", "architectures": ["NewForSequenceClassification"], "auto_map": code}
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | published), encoding="utf-8")
    for name in ("modeling", "configuration"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run')", encoding="utf-8")
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.spec.task, checkpoint.config.model_type) == ("classification", "gte")
    said = (
        "config.json has auto_map: the checkpoint's own Python code is not run, its weights are read as 'new'"
    )
    assert said in checkpoint.remarks


def test_what_is_published_as_new_is_written_for_transformers(tmp_path: Path) -> None:
    write_relative(tmp_path, "gte", SPECS["fill_mask"])
    file = tmp_path / "config.json"
    published = {"rope_scaling": GTE["rope_scaling"], "rope_theta": 20000, "rope_parameters": None}
    published |= {"model_type": "new", "architectures": ["NewForMaskedLM"]}
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | published), encoding="utf-8")
    ours = BertForMaskedLM(BertConfig.read(tmp_path)).eval()
    assert load_into(ours, tmp_path) == []
    save_checkpoint(ours, tmp_path / "saved", "BertForMaskedLM", {})
    theirs, report = transformers.GteForMaskedLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report.values()), report
    ids = torch.arange(5, 125)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs.eval()(ids).logits, atol=1e-5, rtol=1e-5)


def test_segments_of_one_row_and_of_none_are_read() -> None:
    row = np.arange(4, dtype=np.float32)[None]
    words = {"embeddings.word_embeddings.weight": np.ones((3, 4), np.float32)}
    family, name = FAMILIES["new"], "bert.embeddings.token_type_embeddings.weight"
    one = family.bert_weights(
        {**words, "embeddings.token_type_embeddings.weight": row}, {"type_vocab_size": 1}
    )
    assert np.array_equal(one[name], np.concatenate([row, row]))
    assert not family.bert_weights(words, {"type_vocab_size": 0})[name].any()
    assert name not in family.bert_weights(words, {"type_vocab_size": 1})


def test_a_head_without_biases_has_zeros() -> None:
    head = {"cls.predictions.transform.dense.weight": np.ones((4, 4), np.float32)}
    words = {"bert.embeddings.word_embeddings.weight": np.ones((3, 4), np.float32)}
    found = FAMILIES["nomic_bert"].bert_weights({**head, **words}, NOMIC)
    assert not found["cls.predictions.transform.dense.bias"].any()
    assert list(found["cls.predictions.bias"].shape) == [3]


def test_joined_layers_that_cannot_be_parted_are_refused() -> None:
    family, name = FAMILIES["nomic_bert"], "encoder.layers.0.attn.Wqkv.weight"
    with pytest.raises(CheckpointError, match=r"Wqkv.weight has shape \(4, 4\), and holds 3 layers"):
        family.bert_weights({name: np.ones((4, 4), np.float32)}, NOMIC)
    twice = {name: np.ones((6, 2)), "encoder.layers.0.self_attn.k_proj.weight": np.ones((2, 2))}
    with pytest.raises(CheckpointError, match="which are one tensor"):
        family.bert_weights(twice, NOMIC)
