import pytest
import torch

from bert.config import BertConfig
from training.pretraining import mfu
from training.pretraining.mfu import Utilisation, count_flops, matmul_peak
from training.pretraining.new_model import ModelSettings, new_config
from training.pretraining.objectives.language_models import MaskedLanguageModel

CPU = torch.device("cpu")


def test_a_token_of_bert_base_costs_six_flops_a_weight_of_its_layers() -> None:
    with torch.device("meta"):
        base = MaskedLanguageModel(BertConfig())
    flops = count_flops(base)
    assert flops.token == 6 * 12 * 12 * 768**2
    assert flops.predicted == 6 * 768 * (768 + 30522)
    assert flops.attended == 3 * 12 * 4 * 768
    # By hand, over 24·12·H²: 128 tokens of context add T / 6H, 15% of the tokens in the head 0.15 · 2 (1 + V/H) / 288.
    more = 128 / (6 * 768) + 0.15 * 2 * (1 + 30522 / 768) / 288
    share = Utilisation(base, 0.15, peak_flops=flops.token * 1000).share(1000, mean_length=128)
    assert share == pytest.approx(1 + more)


def test_layers_that_share_their_weights_cost_what_layers_do() -> None:
    shared = {
        "model_type": "albert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    }
    with torch.device("meta"):
        flops = count_flops(MaskedLanguageModel(BertConfig.from_dict(shared)))
    assert flops.token == 6 * (12 * 12 * 768**2 + 128 * 768)
    assert flops.attended == 3 * 12 * 4 * 768


@pytest.mark.parametrize(("length", "window"), [(1, 3), (4, 3), (5, 3), (9, 3), (200, 64), (7, 0)])
def test_a_window_is_cut_at_both_ends_of_an_example(length: int, window: int) -> None:
    pairs = sum(abs(i - j) <= window for i in range(length) for j in range(length))
    assert mfu.mean_in_window(length, window) == pytest.approx(pairs / length)


def test_the_sliding_layers_of_modernbert_cost_their_window() -> None:
    with torch.device("meta"):
        base = MaskedLanguageModel(new_config(ModelSettings(model_type="modernbert"), 50_368, 0))
    flops = count_flops(base)
    assert flops.token == 6 * 22 * (4 * 768**2 + 3 * 1152 * 768)
    assert flops.predicted == 6 * 768 * (768 + 50_368)
    assert (flops.attended, flops.in_window) == (3 * 8 * 4 * 768, 3 * 14 * 4 * 768)
    using = Utilisation(base, 0.0, peak_flops=1.0)
    assert using.share(1, 1024) - using.share(1, 512) == pytest.approx(
        512 * flops.attended + 64 * 65 * (1 / 512 - 1 / 1024) * flops.in_window
    )


def test_the_peak_leaves_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mfu, "SIDES", {"cpu": (256,)})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert 1e8 < matmul_peak(CPU, torch.float32) < 1e14
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_reaches_more_in_bf16_than_a_cpu_core() -> None:
    assert matmul_peak(torch.device("cuda"), torch.bfloat16) > 1e12
