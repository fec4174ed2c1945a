"""Small checkpoints as `transformers` and `peft` write them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

from bert.tasks.spec import TaskSpec

SPEC = TaskSpec("classification", ("no", "yes"), max_tokens=32)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]


def model(**changes: Any) -> transformers.BertForSequenceClassification:
    torch.manual_seed(0)
    values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(**{"vocab_size": 7, "max_position_embeddings": 32, **values, **changes})
    return transformers.BertForSequenceClassification(config).eval()


def save(folder: Path, **changes: Any) -> Path:
    model(**changes).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    SPEC.write(folder)
    return folder


def adapter_of(base: Path, folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """Write a random adapter with peft; return the weights that peft itself merges."""
    wrapped = peft.get_peft_model(
        transformers.BertForSequenceClassification.from_pretrained(base),
        peft.LoraConfig(**{"task_type": "SEQ_CLS", "r": 4, "target_modules": ["query", "dense"], **settings}),
    )
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad or "lora_" in name:
            torch.nn.init.normal_(parameter.data, std=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped.save_pretrained(folder)
    SPEC.write(folder)
    merged: dict[str, torch.Tensor] = wrapped.merge_and_unload().state_dict()
    return merged


def assert_same(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    expected = {k: v for k, v in expected.items() if not k.endswith("position_ids")}
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert np.abs(found[name] - tensor.numpy()).max() < 1e-6, name
