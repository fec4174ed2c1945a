"""Attention inside each text of a row: the kernel's arguments by a slow reference of it, and when it is chosen."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.profiler import profile

from bert.bodies.modern import ModernBody
from bert.config import BertConfig
from bert.nn import attention
from bert.nn.attention import TextRows, attend, attention_bias, knows_texts
from bert.nn.bert import BertModel
from bert.nn.encoder import recompute_activations
from bert.nn.modern import ModernModel
from tests.support import varlen
from tests.support.bert_reference import assert_same, fill, small_config

LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)


def rows_of(lengths: list[list[int]], width: int) -> TextRows:
    """Return rows of texts of these lengths, padded to a width."""
    owners, borders = torch.full((len(lengths), width), -1), set[int]()
    for row, texts in enumerate(lengths):
        start = 0
        for number, length in enumerate(texts):
            owners[row, start : start + length] = number
            borders.add(row * width + start)
            start += length
        borders |= {row * width + start} if start < width else set()
    ends = torch.tensor([*sorted(borders), owners.numel()], dtype=torch.int32)
    shared = any(len(texts) > 1 for texts in lengths)
    real = owners >= 0
    return TextRows(ends, owners if shared else None, None if real.all() else real)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernel's way on this machine, with the reference in its place."""
    varlen.with_the_reference(monkeypatch)


def gradients(model: torch.nn.Module, hidden: Tensor, weight: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (hidden * weight).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def modern_config() -> BertConfig:
    body = ModernBody(sliding=(False, True, True), local_attention=4)
    return BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40,
        max_position_embeddings=40, type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=0, body=body,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, spare=st.integers(0, 3), window=st.sampled_from([(-1, -1), (-1, 0), (2, 2), (1, 3)]))
def test_attention_inside_texts_is_that_of_the_mask(
    lengths: list[list[int]], spare: int, window: tuple[int, int]
) -> None:
    width = max(map(sum, lengths)) + spare
    rows = replace(rows_of(lengths, width), window=window)
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(lengths), 2, width, 8, generator=drawn).requires_grad_() for _ in range(3))
    expected = attend(q, k, v, attention_bias(rows.mask(width), q), 0.0, 0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "varlen_attn", varlen.varlen_reference)
        found = attend(q, k, v, rows, 0.0, 0.3)
    places = torch.arange(width)
    used = (places < torch.tensor([[sum(texts)] for texts in lengths]))[:, None, :, None]
    weight = torch.randn(found.shape, generator=drawn) * used
    assert_same((found * used).detach(), (expected * used).detach())
    ours, theirs = (torch.autograd.grad((each * weight).sum(), (q, k, v)) for each in (found, expected))
    for ours_, theirs_ in zip(ours, theirs, strict=True):
        assert_same(ours_, theirs_)


def test_the_reference_takes_the_arguments_of_the_kernel() -> None:
    names = inspect.signature(varlen_attn).parameters
    for name, parameter in inspect.signature(varlen.varlen_reference).parameters.items():
        assert names[name].kind == parameter.kind and names[name].default == parameter.default


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["bert", "modern"])
def test_a_model_gives_the_same_states_and_gradients_by_the_kernel(
    family: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = modern_config() if family == "modern" else small_config(
        1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )  # fmt: skip
    model = ModernModel(config) if family == "modern" else BertModel(config, pooler=False)
    fill(model.double(), 1)
    recompute_activations(model, recompute)
    lengths = [[7, 3, 5], [14], [1, 9]]
    rows, drawn = rows_of(lengths, 16), torch.Generator().manual_seed(2)
    assert rows.owners is not None
    ids = torch.randint(4, 20, (3, 16), generator=drawn)
    weight = (
        torch.randn(3, 16, config.hidden_size, generator=drawn, dtype=torch.float64)
        * (rows.owners >= 0)[..., None]
    )
    places = torch.stack([torch.cat([torch.arange(n) for n in [*t, 16 - sum(t)]]) for t in lengths])
    by_kernel = model(ids, None, rows, places)
    found = gradients(model, by_kernel, weight)
    assert len(varlen.CALLS) == config.num_hidden_layers * (1 + recompute)
    windows = {call["window_size"] for call in varlen.CALLS}
    assert windows == ({(-1, -1), (2, 2)} if family == "modern" else {(-1, -1)})
    monkeypatch.setattr(attention, "knows_texts", lambda *arguments: False)
    masked = model(ids, None, rows, places)
    assert_same((by_kernel * (weight != 0)).detach(), (masked * (weight != 0)).detach())
    for name, gradient in gradients(model, masked, weight).items():
        assert_same(found[name], gradient, name)


@pytest.mark.usefixtures("reference")
def test_windows_over_full_rows_need_no_mask() -> None:
    model = ModernModel(modern_config()).eval()
    ids = torch.randint(4, 20, (2, 9))
    with torch.no_grad():
        by_kernel = model(ids)
        assert [call["window_size"] for call in varlen.CALLS] == [(-1, -1), (2, 2), (2, 2)]
        assert {call["stretches"] for call in varlen.CALLS} == {2}
        assert_same(by_kernel, model(ids, None, torch.ones(2, 9)))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


@pytest.mark.parametrize(
    ("changes", "training", "expected"),
    [
        ({}, True, True),
        ({"attention_probs_dropout_prob": 0.1}, True, False),
        ({"attention_probs_dropout_prob": 0.1}, False, True),
        ({"hidden_size": 36}, True, False),
        ({"hidden_size": 4 * 264}, True, False),
        ({"model_type": "mpnet"}, True, False),
    ],
)
def test_the_kernel_is_chosen_where_it_can_be(
    changes: dict[str, Any], training: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch)
    fixed = {"hidden_size": 64, "num_attention_heads": 4, "attention_probs_dropout_prob": 0.0}
    config = small_config(0, **{**fixed, **changes})
    with FakeTensorMode():
        half = torch.empty(2, 8, config.hidden_size, dtype=torch.bfloat16, device="cuda")
        assert knows_texts(half, config, training) == expected
        assert not knows_texts(half.float(), config, training)
        assert not knows_texts(half.cpu(), config, training)
        on_a_gpu(monkeypatch, (7, 5))
        assert not knows_texts(half, config, training)
        on_a_gpu(monkeypatch)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
        assert knows_texts(half.float(), config, training) == expected


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_torchs_own_kernel_takes_the_arguments(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only shapes are computed, so that no GPU is needed."""
    varlen.take_the_kernel(monkeypatch)
    config = modern_config() if family == "modern" else small_config(1, attention_probs_dropout_prob=0.0)
    with torch.device("meta"):
        model = ModernModel(config) if family == "modern" else BertModel(config, pooler=False)
        ids = torch.zeros(2, 16, dtype=torch.int64)
        rows = TextRows(torch.zeros(5, dtype=torch.int32), torch.zeros(2, 16, dtype=torch.int64))
    with profile() as profiler:
        hidden = model.bfloat16()(ids, None, rows)
        hidden.sum().backward()
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert hidden.shape == (2, 16, config.hidden_size)
    assert counts["torch_attn::_varlen_attn"] == config.num_hidden_layers
    assert counts["torch_attn::_varlen_attn_backward"] == config.num_hidden_layers
