"""DeBERTa's layers in training: recomputed, in half precision, and where a text sees nothing."""

import pytest
import torch
from torch import Tensor

from bert.config import BertConfig
from bert.nn.deberta import DebertaModel
from bert.nn.encoder import recompute_activations
from tests.support.bert_reference import fill, random_batch, small_config

CONFIG = small_config(
    15,
    num_hidden_layers=3,
    model_type="deberta-v2",
    pos_att_type=("c2p", "p2c"),
    position_biased_input=False,
    position_buckets=8,
    norm_rel_ebd="layer_norm",
    conv_kernel_size=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def model_of(config: BertConfig) -> DebertaModel:
    model = DebertaModel(config).train()
    fill(model, 15)
    return model


def gradients(model: DebertaModel, hidden: Tensor) -> list[Tensor]:
    """Return the gradients of a loss that is the same in every call."""
    drawn = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    trained = [p for name, p in model.named_parameters() if p.requires_grad and "pooler" not in name]
    return list(torch.autograd.grad((hidden.float() * drawn).sum(), trained))


def test_recomputed_layers_have_the_same_gradients() -> None:
    model, batch = model_of(CONFIG), random_batch(CONFIG, 15)
    expected = gradients(model, model(*batch))
    recompute_activations(model)
    for found, kept in zip(gradients(model, model(*batch)), expected, strict=True):
        torch.testing.assert_close(found, kept)


def test_training_in_half_precision_is_close() -> None:
    model, batch = model_of(CONFIG), random_batch(CONFIG, 15)
    expected = model(*batch)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(*batch)
    torch.testing.assert_close(hidden.float(), expected, atol=0.2, rtol=0.1)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model, hidden))


@pytest.mark.parametrize("share_att_key", [True, False])
def test_fresh_weights_without_key_biases_keep_them_zero(share_att_key: bool) -> None:
    config = small_config(3, model_type="deberta", pos_att_type=("c2p", "p2c"), share_att_key=share_att_key)
    frozen = {name for name, p in DebertaModel(config).named_parameters() if not p.requires_grad}
    parts = ["key"] if share_att_key else ["key", "pos_key_proj"]
    names = [
        f"encoder.layer.{layer}.attention.self.{part}.bias"
        for layer in range(config.num_hidden_layers)
        for part in parts
    ]
    assert frozen == set(names)


def test_a_text_that_sees_nothing_is_no_nan() -> None:
    model, ids = model_of(CONFIG).eval(), random_batch(CONFIG, 12).input_ids
    nothing = torch.zeros(*ids.shape, ids.shape[1], dtype=torch.long)
    with torch.no_grad():
        assert torch.isfinite(model(ids, None, torch.zeros_like(ids))).all()
        assert torch.isfinite(model(ids, None, nothing)).all()
