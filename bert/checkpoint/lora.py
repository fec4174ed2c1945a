"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685) in peft's files, merged into the weights that they belong to."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.bodies.body import POSITIONS, SEGMENTS
from bert.bodies.family import Family
from bert.checkpoint.tensor_names import Weights
from bert.errors import CheckpointError
from bert.files import read_object

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_PICKLED = "adapter_model.bin"
"""Weights of an old adapter, read where ADAPTER_WEIGHTS is not there."""

# Variants whose merge is another formula.
_OTHER_FORMULAS = (
    "use_dora", "use_qalora", "use_bdlora", "layer_replication", "trainable_token_indices",
    "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "velora_config",
)  # fmt: skip
_FACTORS = re.compile(
    r"^(?P<module>.+)\.(?P<factor>lora_(?:embedding_)?[AB])(?:\.default)?(?:\.(?P<kind>weight|bias))?$"
)


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Read `adapter_config.json`; raises CheckpointError for anything but plain LoRA."""
    file = folder / ADAPTER_CONFIG
    config = read_object(file)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{file}: only adapters with peft_type LORA are read")
    other = [key for key in _OTHER_FORMULAS if config.get(key)]
    if other:
        raise CheckpointError(f"{file} sets {', '.join(other)}: only plain LoRA is merged")
    _check_alphas(file, config)
    return config


def _check_alphas(file: Path, config: Mapping[str, Any]) -> None:
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{file}: alpha_pattern ({patterns!r}) must be an object")
    alphas = {"lora_alpha": config.get("lora_alpha")}
    alphas |= {f"alpha_pattern.{pattern}": alpha for pattern, alpha in patterns.items()}
    for name, alpha in alphas.items():
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise CheckpointError(f"{file}: {name} ({alpha!r}) must be a number")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CheckpointError(
                f"{file}: alpha_pattern {pattern!r} is not a regular expression: {error}"
            ) from None


def merge(
    base: Mapping[str, NDArray[np.float32]],
    adapter: Weights,
    config: Mapping[str, Any],
    family: Family,
    heads: int = 1,
) -> Weights:
    """Return the base's weights with the adapter in them.

    `adapter` has peft's names of its family's modules. A pair of factors B (out, r), A (r, in) adds
    scale * B @ A to the weight of its module; every other tensor (peft's `modules_to_save`, trained biases)
    replaces the one of the base. `heads` is the number of attention heads.
    """
    merged = dict(base)
    factors: dict[str, Weights] = {}
    for key, tensor in adapter.items():
        name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        name = name.replace(".modules_to_save.default.", ".").replace(".modules_to_save.", ".")
        if ".original_module." in name:  # with bias="all" peft also saves what its copy took the place of
            continue
        match = _FACTORS.match(name)
        if match:
            factor = match["factor"] + (".bias" if match["kind"] == "bias" else "")
            factors.setdefault(match["module"], {})[factor] = tensor
        elif "lora_" in name:
            raise CheckpointError(f"the adapter's tensor {key!r} belongs to another method than plain LoRA")
        else:
            replaced = family.split_projections({family.bert_name(name): tensor}, heads)
            merged |= {each: _table(each, tensor, base) for each, tensor in replaced.items()}
    for module, parts in factors.items():
        _add_product(merged, module, parts, config, family, heads)
    return merged


def _table(
    name: str, tensor: NDArray[np.float32], base: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return a tensor as BERT has it: files of a family may have positions of padding, or only one segment."""
    if name == POSITIONS and name in base:
        return tensor[-len(base[name]) :]
    if name == SEGMENTS and name in base and len(tensor) == 1:
        return base[name]
    return tensor


def _add_product(
    merged: Weights, module: str, parts: Weights, config: Mapping[str, Any], family: Family, heads: int
) -> None:
    name = family.bert_name(f"{module}.weight")
    is_joined = module.rpartition(".")[2] in family.joined
    if name not in merged and not is_joined:
        raise CheckpointError(f"the adapter changes {name!r}, which the base does not have")
    embedding = "lora_embedding_A" in parts
    kind = "lora_embedding_" if embedding else "lora_"
    if not {f"{kind}A", f"{kind}B"} <= set(parts):
        raise CheckpointError(f"the adapter has only {', '.join(parts)} of {module!r}")
    a, b = parts[f"{kind}A"], parts[f"{kind}B"]
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[0] or not len(a):
        raise CheckpointError(f"the adapter's factors of {module!r} have shapes {b.shape} and {a.shape}")
    scale = _scale(module, a.shape[0], config)
    # Summed in float64, so that the last bits do not depend on the processor and its number of threads.
    product = (scale * (b.astype(np.float64) @ a)).astype(np.float32)
    if embedding or config.get("fan_in_fan_out"):
        product = product.T
    for part, added in family.split_projections({name: product}, heads).items():
        if part not in merged or added.shape != merged[part].shape:
            found = merged[part].shape if part in merged else "none"
            raise CheckpointError(f"the adapter's {module!r} gives {product.shape}, the base has {found}")
        merged[part] = (merged[part] + added).astype(np.float32)
    if "lora_B.bias" in parts:  # peft's `lora_bias`
        bias = family.bert_name(f"{module}.bias")
        merged[bias] = (merged[bias] + scale * parts["lora_B.bias"]).astype(np.float32)


def _scale(module: str, rank: int, config: Mapping[str, Any]) -> float:
    """Return alpha over the rank, or over its root for rank-stabilised LoRA (arXiv 2312.03732)."""
    alpha = config["lora_alpha"]
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):  # peft: get_pattern_key
            alpha = value
    return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)
