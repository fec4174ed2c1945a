"""LoRA adapters: put around a model, and written as peft reads them beside the family's own class."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bert.bodies.family import Family
from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.cached_files import origin
from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from bert.config import BertConfig
from bert.nn.heads import BertHead
from bert.text.letter_shapes import SHAPES
from training.settings import LoraSettings

if TYPE_CHECKING:  # peft imports transformers, which takes seconds, so only the runs that use it import it
    import peft

# The encoder's linear layers, without DeBERTa's own projections of distances; the pooler belongs to the head.
LORA_TARGETS = r".*encoder\.layer\.\d+\..*(query|key|value|dense|intermediate\.up)"
PEFT = "base_model.model."
"""Beginning of the names in a file of peft."""


def add_lora(model: BertHead, lora: LoraSettings) -> nn.Module:
    """Freeze the encoder and put trainable matrices beside its linear layers; the head is trained whole."""
    import peft

    has_shapes = model.config.type_vocab_size == SHAPES  # and a table that is not the base's
    segments = ["token_type_embeddings"] if has_shapes else []
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=LORA_TARGETS,
        modules_to_save=[*model.head_modules, *segments],
    )
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def is_adapted(model: nn.Module) -> bool:
    """Tell whether a model is what `add_lora` returns."""
    return hasattr(model, "peft_config")


def save_adapter(
    model: "peft.PeftModel", folder: Path, base: str, shape: BertConfig, architecture: str
) -> None:
    """Write what `add_lora` trains, under the names of the family's class."""
    family = shape.family
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if family.layer_names:
        config["target_modules"] = family.own_modules(family.linear_layers, architecture)
    pooler = family.own_name("bert.pooler.dense", architecture).removeprefix(family.prefix).partition(".")[0]
    saved = [pooler if name == "pooler" else name for name in config["modules_to_save"] or ()]
    config["modules_to_save"] = list(dict.fromkeys(saved))
    joined = family.join_factors(load_file(folder / ADAPTER_WEIGHTS), shape.num_attention_heads)
    # The class of embeddings is the bare body, whose own names have no prefix.
    prefix = family.prefix if architecture == "BertModel" else ""
    weights = _renamed(joined, lambda name: family.own_name(name, architecture).removeprefix(prefix))
    write_adapter(folder, config, weights, family, base)


def write_adapter(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], family: Family, base: str
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`; `config` has `r` and `lora_alpha`.

    A projection that joins n of BERT's has n times the rank and alpha, so that their ratio is the same for every matrix.
    """
    full = {
        **config,
        "base_model_name_or_path": base,
        "rank_pattern": {name: count * config["r"] for name, count in family.joined.items()},
        "alpha_pattern": {name: count * config["lora_alpha"] for name, count in family.joined.items()},
    }
    if hub_model := origin(resolve_base(base)):
        full |= {"base_model_name_or_path": hub_model["repo"], "revision": hub_model["commit"]}
    save_file(dict(weights), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(full, indent=2, sort_keys=True) + "\n"
    (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def read_adapter(folder: Path, shape: BertConfig) -> dict[str, Tensor]:
    """Read `adapter_model.safetensors`, with the names that peft gives the modules of BertHead."""
    weights = _renamed(load_file(folder / ADAPTER_WEIGHTS), shape.family.bert_name)
    return shape.family.split_factors(weights, shape.num_attention_heads)


def _renamed(weights: Mapping[str, Tensor], name_of: Callable[[str], str]) -> dict[str, Tensor]:
    return {f"{PEFT}{name_of(name.removeprefix(PEFT))}": tensor for name, tensor in weights.items()}
