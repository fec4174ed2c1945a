from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert.config import BertConfig
from bert.nn.heads import BertForMaskedLM, BertForPreTraining
from training.pretraining import mfu
from training.pretraining.mfu import flops_per_token, forward_flops_per_token, matmul_peak, utilisation

CPU = torch.device("cpu")


def config(**changes: Any) -> BertConfig:
    shape: dict[str, Any] = {
        "vocab_size": 997,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    return BertConfig(**{**shape, "intermediate_size": 256, "max_position_embeddings": 128, **changes})


@pytest.mark.parametrize(
    ("shape", "texts", "length", "masked"),
    [
        (config(), 4, 96, 48),  # 12.5% of the tokens
        (config(intermediate_size=96), 2, 128, 77),
        (config(vocab_size=30522), 4, 32, 19),  # the head costs more than the encoder
        (config(), 4, 96, 0),
    ],
)  # fmt: skip
def test_flops_are_those_that_torch_counts(shape: BertConfig, texts: int, length: int, masked: int) -> None:
    model = BertForMaskedLM(shape)
    ids = torch.randint(0, shape.vocab_size, (texts, length))
    positions, labels = torch.arange(masked), torch.randint(0, shape.vocab_size, (masked,))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hidden = model.bert(ids)
        if masked:
            F.cross_entropy(model.score(hidden.flatten(0, 1)[positions]), labels).backward()
        else:
            hidden.sum().backward()
    ours = flops_per_token(shape, length, masked / (texts * length)) * texts * length
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_the_pooler_that_is_left_out_is_under_two_percent() -> None:
    shape = config()
    model, ids = BertForPreTraining(shape), torch.randint(0, shape.vocab_size, (2, 64))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        hidden = model.bert(ids)
        model.score(hidden[:, :10])
        model.score_next_sentence(hidden)
    ours = forward_flops_per_token(shape, 64, 10 / 64) * 2 * 64
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_token_of_bert_base_costs_about_six_flops_a_weight_of_its_layers() -> None:
    base = BertConfig()
    assert flops_per_token(base, 0, 0) == 6 * 12 * 12 * 768**2
    # By hand, over 24·12·H²: 128 tokens of context add T / 6H, 15% of the tokens in the head 0.15 · 2 (1 + V/H) / 288.
    more = 128 / (6 * 768) + 0.15 * 2 * (1 + 30522 / 768) / 288
    assert flops_per_token(base, 128, 0.15) / flops_per_token(base, 0, 0) == pytest.approx(1 + more)


def test_the_peak_is_what_a_product_of_the_same_size_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mfu, "SIDES", {"cpu": (256,)})
    mfu._peak.cache_clear()
    peak = matmul_peak(CPU, torch.float32, seconds=0.1)
    a = torch.randn(256, 256)
    assert peak >= 2 * 256**3 / mfu._time(a, a, torch.empty_like(a), 100) * 0.3  # other work may slow either
    assert 1e8 < peak < 1e14


def test_the_peak_is_measured_once_a_process_and_leaves_the_generator_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mfu, "SIDES", {"cpu": (64,)})
    mfu._peak.cache_clear()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = matmul_peak(CPU, torch.bfloat16, seconds=0.01)
    assert torch.equal(torch.get_rng_state(), before)
    assert matmul_peak(CPU, torch.bfloat16, seconds=0.01) == first
    assert mfu._peak.cache_info().misses == 1
    matmul_peak(CPU, torch.float32, seconds=0.01)
    assert mfu._peak.cache_info().misses == 2


def test_utilisation_is_the_share_of_the_peak() -> None:
    assert utilisation(1000, 2e9, 5e12) == pytest.approx(0.4)
    assert utilisation(1000, 2e9, 0) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_reaches_more_in_bf16_than_a_cpu_core() -> None:
    mfu._peak.cache_clear()
    assert matmul_peak(torch.device("cuda"), torch.bfloat16) > 1e12
