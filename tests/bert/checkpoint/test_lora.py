"""LoRA adapters, merged as peft merges them."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import safetensors.torch
import torch
import transformers
from safetensors.torch import save_file

from bert.checkpoint.weights import read_checkpoint, read_safetensors
from bert.errors import CheckpointError
from bert.tasks.spec import TaskSpec
from tests.support.hub_checkpoints import adapter_of, assert_same, save

# peft asks transformers for a name that is going away.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(tmp_path / "base")


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_alpha": 8},
        {"lora_alpha": 12, "use_rslora": True},
        {"target_modules": ["word_embeddings", "key"], "lora_alpha": 4},
        {"modules_to_save": ["LayerNorm", "classifier"]},
        {"bias": "lora_only"},
        {"bias": "all"},
        {"lora_bias": True},
        {"rank_pattern": {"layer.1.attention.self.query": 2}, "alpha_pattern": {"layer.0.output.dense": 32}},
        {"target_modules": "all-linear", "exclude_modules": ["classifier"]},
    ],
    ids=str,
)
def test_adapters_merge_as_in_peft(settings: dict[str, Any], base: Path, tmp_path: Path) -> None:
    expected = adapter_of(base, tmp_path / "adapter", **settings)
    checkpoint = read_checkpoint(tmp_path / "adapter", base)
    assert_same(checkpoint.weights, expected)
    assert set(checkpoint.sources) == {"files", "base"}
    assert "model.safetensors" in checkpoint.sources["base"]["files"]


def test_a_pickled_adapter_is_read_without_running_anything(base: Path, tmp_path: Path) -> None:
    expected = adapter_of(base, tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    torch.save(safetensors.torch.load_file(file), tmp_path / "adapter/adapter_model.bin")
    file.unlink()
    checkpoint = read_checkpoint(tmp_path / "adapter", base)
    assert_same(checkpoint.weights, expected)
    assert "adapter_model.bin" in checkpoint.sources["files"]
    (tmp_path / "adapter/adapter_model.bin").write_bytes(pickle.dumps(print))
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin"):
        read_checkpoint(tmp_path / "adapter", base)


def test_an_adapter_of_a_bare_encoder_merges(base: Path, tmp_path: Path) -> None:
    encoder = transformers.BertModel.from_pretrained(base)
    wrapped = peft.get_peft_model(encoder, peft.LoraConfig(r=2, target_modules=["value"]))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data)
    wrapped.save_pretrained(tmp_path / "adapter")
    TaskSpec("similarity", max_tokens=32).write(tmp_path / "adapter")
    found = read_checkpoint(tmp_path / "adapter", base).weights
    for name, tensor in wrapped.merge_and_unload().state_dict().items():
        assert np.abs(found[f"bert.{name}"] - tensor.numpy()).max() < 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"peft_type": "IA3"}, "only adapters with peft_type LORA"),
        ({"use_dora": True}, "sets use_dora"),
    ],
)
def test_other_methods_than_plain_lora_are_refused(
    change: dict[str, Any], why: str, base: Path, tmp_path: Path
) -> None:
    adapter_of(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(tmp_path / "adapter", base)


def test_an_adapter_for_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    adapter_of(base, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"gives \(\d+, \d+\), the base has \(\d+, \d+\)"):
        read_checkpoint(tmp_path / "adapter", save(tmp_path / "wide", hidden_size=32))
    named = TaskSpec("classification", ("no", "yes"), max_tokens=32, base={"name": "x", "sha256": "0" * 64})
    named.write(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=f"has sha256 .*, expected {'0' * 64}: these are other weights"):
        read_checkpoint(tmp_path / "adapter", base)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lora_alpha": "x"}, r"adapter_config.json: lora_alpha \('x'\) must be a number"),
        ({"lora_alpha": None}, r"lora_alpha \(None\)"),
        ({"lora_alpha": float("inf")}, r"lora_alpha \(inf\)"),
        ({"alpha_pattern": ["query"]}, r"alpha_pattern \(\['query'\]\) must be an object"),
        ({"alpha_pattern": {"query": "8"}}, r"alpha_pattern.query \('8'\) must be a number"),
        ({"alpha_pattern": {"(": 8}}, r"alpha_pattern '\(' is not a regular expression"),
    ],
)
def test_an_adapters_scale_must_be_a_number(
    change: dict[str, Any], why: str, base: Path, tmp_path: Path
) -> None:
    adapter_of(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(tmp_path / "adapter", base)


def test_factors_of_unlike_ranks_are_refused(base: Path, tmp_path: Path) -> None:
    adapter_of(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = {k: torch.tensor(v) for k, v in read_safetensors(file).items()}
    save_file({k: v[:3] if "lora_A" in k else v for k, v in tensors.items()}, file)
    with pytest.raises(CheckpointError, match=r"factors of '.*' have shapes \(\d+, 4\) and \(3, \d+\)"):
        read_checkpoint(tmp_path / "adapter", base)
