"""The encoder: its size, packed texts, and transformers at base size."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.bert import modeling_bert

from bert.bodies.sizes import ACTIVATIONS
from bert.config import BertConfig
from bert.nn import attention
from bert.nn.attention import attention_bias, plain_attention
from bert.nn.bert import BertModel
from bert.nn.encoder import activation, recompute_activations
from bert.nn.heads import BertForPreTraining
from tests.support.bert_reference import (
    assert_same,
    fill,
    our_logits,
    our_loss,
    random_batch,
    random_targets,
    small_config,
    their_config,
    their_logits,
    twins,
)

LARGE = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


@pytest.mark.parametrize(("config", "count"), [(BertConfig(), 109_482_240), (LARGE, 335_141_888)])
def test_the_parameters_are_as_many_as_published(config: BertConfig, count: int) -> None:
    with torch.device("meta"):
        model = BertModel(config)
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_file_format_is_that_of_transformers() -> None:
    with torch.device("meta"):
        ours = BertModel(BertConfig()).state_dict()
        theirs = modeling_bert.BertModel(modeling_bert.BertConfig()).state_dict()
    assert {name: t.shape for name, t in ours.items()} == {name: t.shape for name, t in theirs.items()}


def fill_quickly(model: torch.nn.Module) -> None:
    """Fill 110 million weights from one short random row, whose length no width divides."""
    row = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)).mul_(0.02)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            repeats = parameter.numel() // len(row) + 1
            parameter.copy_(row.repeat(repeats)[: parameter.numel()].view_as(parameter))
            parameter.add_(float(name.endswith("LayerNorm.weight")))


def their_twin(ours: BertForPreTraining) -> Any:
    """Return transformers' model on the same memory: two of base size need not fit."""
    with torch.device("meta"):
        theirs = modeling_bert.BertForPreTraining(their_config(ours.config))
    weights = ours.state_dict()
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    theirs.load_state_dict(weights, assign=True)
    return theirs.requires_grad_().eval()


def test_base_size_is_that_of_transformers() -> None:
    config = BertConfig()
    with torch.device("meta"):
        ours = BertForPreTraining(config)
    ours = ours.to_empty(device="cpu").eval()
    fill_quickly(ours)
    theirs = their_twin(ours)
    batch = random_batch(config, 1, texts=2, tokens=24)
    targets = random_targets("BertForPreTraining", config, batch, 1)
    logits = our_logits(ours, batch)
    positions = torch.arange(24)[None]
    expected = theirs(**batch.theirs(""), **targets, position_ids=positions)
    for our, their in zip(logits, their_logits(expected), strict=True):
        assert_same(our, their, "logits")
    loss = our_loss("BertForPreTraining", logits, targets)
    assert_same(loss, expected.loss, "loss")
    check_base_gradients(ours, theirs, loss, expected.loss)


def check_base_gradients(ours: BertForPreTraining, theirs: Any, loss: Any, their_loss: Any) -> None:
    """Compare the gradients of the encoder and of the heads' own layers; the tied table is compared when small."""
    names = [name for name, _ in ours.named_parameters() if "word_embeddings" not in name]
    gradients = torch.autograd.grad(loss, [ours.get_parameter(name) for name in names])
    wanted = [theirs.get_parameter(name) for name in names if name != "cls.predictions.bias"]
    expected = iter(torch.autograd.grad(their_loss, wanted))
    for name, gradient in zip(names, gradients, strict=True):
        if name != "cls.predictions.bias":
            assert_same(gradient, next(expected), name)


def test_packed_texts_do_not_see_each_other() -> None:
    config = small_config(11)
    model = BertModel(config).eval()
    fill(model, 11)
    lengths = (5, 1, 8)
    texts = [
        torch.randint(0, config.vocab_size, (1, n), generator=torch.Generator().manual_seed(n))
        for n in lengths
    ]
    owner = torch.tensor([n for n, length in enumerate(lengths) for _ in range(length)])
    row = model(
        torch.cat(texts, 1),
        attention_mask=(owner[None, :, None] == owner[None, None, :]),
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
    )
    assert_same(row.detach(), torch.cat([model(text) for text in texts], 1).detach())


def test_the_states_of_all_layers_are_those_of_transformers() -> None:
    config = small_config(13, num_hidden_layers=3)
    ours, theirs = twins("BertForMaskedLM", config, 13)
    batch = random_batch(config, 13)
    expected = theirs(**batch.theirs(""), output_hidden_states=True).hidden_states
    found: list[Tensor] = []
    for module in (ours.bert.embeddings, *ours.bert.encoder.layer):
        module.register_forward_hook(lambda _, __, output: found.append(output))
    ours.bert(batch.input_ids, batch.segment_ids, batch.attention_mask)
    assert len(found) == len(expected) == 4
    tokens = batch.attention_mask.bool()
    for our, their in zip(found, expected, strict=True):
        assert_same(our.detach()[tokens], their.detach()[tokens])


def test_a_mask_of_ones_is_no_mask() -> None:
    config = small_config(12)
    model = BertModel(config).eval()
    ids = random_batch(config, 12).input_ids
    assert_same(model(ids).detach(), model(ids, attention_mask=torch.ones_like(ids)).detach())


def test_activations_are_those_of_transformers() -> None:
    from transformers.activations import ACT2FN

    values = torch.linspace(-6, 6, 999)
    for name in ACTIVATIONS:
        assert_same(activation(name)(values), ACT2FN[name](values), name, atol=1e-6)


def trained_once(model: BertModel, ids: torch.Tensor) -> tuple[dict[str, torch.Tensor], int]:
    """Return the gradients of a loss under dropout from a fixed seed, and how many numbers were kept for them."""
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    model.zero_grad()
    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(ids).square().mean()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, kept


def test_recomputed_activations_give_the_same_gradients_from_less_memory() -> None:
    config = small_config(13, num_hidden_layers=3, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    model = BertModel(config, pooler=False).train()
    fill(model, 13)
    ids = random_batch(config, 13).input_ids
    gradients, kept = trained_once(model, ids)
    recompute_activations(model)
    again, kept_with_recomputing = trained_once(model, ids)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(again[name], gradient) for name, gradient in gradients.items())
    assert kept_with_recomputing < kept / 4
    recompute_activations(model, on=False)
    assert trained_once(model, ids)[1] == kept


@pytest.mark.parametrize("by_pairs", [None, False, True])
def test_plain_attention_is_that_of_torch(by_pairs: bool | None) -> None:
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, 7, 8, generator=drawn).requires_grad_() for _ in range(3))
    seen = torch.rand(3, 7, 7, generator=drawn) > 0.5 if by_pairs else torch.rand(3, 7, generator=drawn) > 0.5
    seen[..., 0] = True
    mask = None if by_pairs is None else seen
    ours = plain_attention(q, k, v, attention_bias(mask, q), 0.0)
    allowed = None if mask is None else mask[:, None] if by_pairs else mask[:, None, None]
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    assert_same(ours.detach(), theirs.detach())
    weight = torch.randn(ours.shape, generator=drawn)
    expected = torch.autograd.grad((theirs * weight).sum(), (q, k, v))
    for gradient, their in zip(torch.autograd.grad((ours * weight).sum(), (q, k, v)), expected, strict=True):
        assert_same(gradient, their)


def test_training_in_half_precision_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return plain_attention(*arguments)

    monkeypatch.setattr(attention, "plain_attention", counted)
    config = small_config(14, num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertModel(config).train()
    fill(model, 14)
    batch = random_batch(config, 14)
    expected = model(*batch)
    assert calls == 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(*batch)
        with torch.no_grad():
            model(*batch)
    assert calls == config.num_hidden_layers
    torch.testing.assert_close(hidden.float(), expected, atol=0.15, rtol=0.1)


def test_a_text_that_sees_nothing_is_no_nan() -> None:
    config = small_config(12)
    model = BertModel(config).eval()
    ids = random_batch(config, 12).input_ids
    assert model(ids, attention_mask=torch.zeros_like(ids)).isfinite().all()
