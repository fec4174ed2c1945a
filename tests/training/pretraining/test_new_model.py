"""New models of every family: their shapes, and the classes that transformers loads them as."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from pydantic import ValidationError

from bert.bodies.modern import ModernBody
from bert.errors import ConfigError
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForMaskedLM, BertForSequenceClassification
from training.pretraining.new_model import ModelSettings, ModelType, new_config

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40, "initializer_range": 0.3,
}  # fmt: skip
SMALLER: dict[str, Any] = {
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "deberta-v2": {"position_buckets": 8},
}


@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_transformers_loads_a_new_model_as_its_class(model_type: str, tmp_path: Path) -> None:
    shape = ModelSettings(model_type=model_type, **SMALL, **SMALLER.get(model_type, {}))
    ours = BertForMaskedLM(new_config(shape, 60, pad_id=0)).eval()
    save_checkpoint(ours, tmp_path, "BertForMaskedLM", {})
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert theirs.config.model_type == model_type
    assert not any(report.values()), report
    ids = torch.arange(5, 40)[None] % 60
    with torch.no_grad():
        torch.testing.assert_close(
            ours(ids), theirs.eval()(ids, attention_mask=torch.ones_like(ids)).logits, atol=1e-4, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("model_type", "published"),
    [("roberta", "RobertaConfig"), ("electra", "ElectraConfig"), ("modernbert", "ModernBertConfig")],
)
def test_defaults_are_those_of_the_published_base(model_type: str, published: str) -> None:
    found = new_config(ModelSettings(model_type=model_type), 1000, 0).to_dict()
    theirs = getattr(transformers, published)()
    names = {
        "modernbert": ("num_hidden_layers", "intermediate_size", "norm_eps", "local_attention", "layer_types")
    }
    for name in names.get(model_type, ("hidden_act", "initializer_range", "hidden_dropout_prob")):
        assert found[name] == getattr(theirs, name), name


def test_fresh_weights_of_modernbert_are_drawn_as_its_own_code_draws_them() -> None:
    """AnswerDotAI/ModernBERT, initialization.py, full_megatron: in, out, emb and final_out, cut at two deviations."""
    torch.manual_seed(0)
    shape = ModelSettings(
        model_type="modernbert",
        hidden_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        initializer_range=0.1,
    )
    config = new_config(shape, 400, pad_id=0)
    assert config.intermediate_size == 192
    widening = ["query_key_value", "intermediate.dense", "word_embeddings", "head.dense"]
    deep = 0.1 / math.sqrt(2 * 8)
    found = BertForMaskedLM(config).requires_grad_(False).named_parameters()
    for name, weight in found:
        if weight.dim() == 1:
            assert weight.unique().tolist() == [float("norm" in name.lower())], name  # norms 1, biases 0
            continue
        std = 0.1 if any(part in name for part in widening) else deep
        assert "output.dense" in name or std == 0.1, name
        # A normal cut at two deviations has 0.88 of its deviation.
        assert float(weight.std()) == pytest.approx(0.8796 * std, rel=0.03), name
        assert float(weight.abs().max()) <= 2 * std
    labels = BertForSequenceClassification(config, 200).requires_grad_(False)
    assert float(labels.classifier.weight.std()) == pytest.approx(0.8796 / math.sqrt(128), rel=0.03)
    assert float(labels.get_parameter("head.dense.weight").std()) == pytest.approx(0.8796 * deep, rel=0.03)


@pytest.mark.parametrize(
    ("model_type", "setting"),
    [("bert", {"embedding_size": 64}), ("roberta", {"num_hidden_groups": 1}), ("albert", {"position_buckets": 32}),
     ("deberta-v2", {"local_attention": 64})],
)  # fmt: skip
def test_a_setting_that_a_family_does_not_read_is_refused(model_type: str, setting: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="means nothing to model_type"):
        ModelSettings(model_type=model_type, **setting)


def test_only_modernbert_has_rotations() -> None:
    with pytest.raises(ConfigError, match="global_rope_theta \\(500\\) means nothing to model_type 'bert'"):
        new_config(ModelSettings(global_rope_theta=500), 60, 0)
    modern = new_config(ModelSettings(model_type="modernbert", global_rope_theta=1e4), 60, 0).body
    assert isinstance(modern, ModernBody) and modern.full_theta == modern.sliding_theta == 1e4


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "electra", "modernbert"])
def test_dropout_is_where_transformers_has_it(model_type: str, tmp_path: Path) -> None:
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    shape = ModelSettings(model_type=model_type, **SMALL, **SMALLER.get(model_type, {}), **rates)
    ours = BertForMaskedLM(new_config(shape, 60, pad_id=0)).train()
    save_checkpoint(ours, tmp_path, "BertForMaskedLM", {})
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa").train()
    ids = torch.arange(5, 37).reshape(2, 16)
    with torch.no_grad():
        torch.manual_seed(1)
        found = ours(ids)
        torch.manual_seed(1)
        torch.testing.assert_close(found, theirs(ids).logits, atol=1e-4, rtol=1e-5)
        assert not torch.allclose(found, ours.eval()(ids), atol=1e-2)
