"""New models of every family: their shapes, and the classes that transformers loads them as."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from pydantic import ValidationError

from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForMaskedLM
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


@pytest.mark.parametrize(
    ("model_type", "setting"),
    [("bert", {"embedding_size": 64}), ("roberta", {"num_hidden_groups": 1}), ("albert", {"position_buckets": 32}),
     ("deberta-v2", {"local_attention": 64})],
)  # fmt: skip
def test_a_setting_that_a_family_does_not_read_is_refused(model_type: str, setting: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="means nothing to model_type"):
        ModelSettings(model_type=model_type, **setting)
