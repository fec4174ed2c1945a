"""Checkpoint folders in Hugging Face's format: `config.json`, `model.safetensors` and their traps."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert.errors import CheckpointError
from bert.nn.heads import BertHead

# What an encoder-only checkpoint begins with, where one with a head says `bert.embeddings`.
_BARE = re.compile(r"^(embeddings|encoder|pooler)\.")
# Buffers of old checkpoints, and second names of tied weights.
_DROPPED = re.compile(r"embeddings\.position_ids$|cls\.predictions\.decoder\.(weight|bias)$")


def normalise_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under today's names: `gamma`/`beta` renamed, `bert.` in front of the encoder, buffers gone."""
    renamed = {}
    for name, tensor in weights.items():
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        if not _DROPPED.search(name):
            renamed[_BARE.sub(r"bert.\1.", name)] = tensor
    return renamed


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read `model.safetensors` (or its shards) with normalised names. Pickles are never loaded."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        files = [single]
    elif index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / shard for shard in sorted(set(shards))]
    elif (folder / "pytorch_model.bin").is_file():
        raise CheckpointError(
            f"{folder} holds its weights as a pickle, which can run any code; convert it to model.safetensors first"
        )
    else:
        raise CheckpointError(f"{single} is missing")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from None
    return normalise_names(weights)


def load_into(model: BertHead, folder: Path) -> list[str]:
    """Fill a model from a checkpoint and return the names that kept their fresh weights.

    Only a head and the pooler may be missing; anything missing from the encoder, or of another shape, raises
    CheckpointError. Tensors of other heads in the file are left out.
    """
    weights, wanted = read_weights(folder), model.state_dict()
    tied = {"cls.predictions.decoder.weight"}
    wrong = [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    missing = [name for name in wanted if name not in weights and name not in tied]
    broken = [name for name in missing if name.startswith(("bert.embeddings.", "bert.encoder."))]
    if wrong or broken:
        raise CheckpointError(f"{folder}: " + "; ".join((wrong + [f"{n} is missing" for n in broken])[:5]))
    model.load_state_dict({name: weights[name] for name in wanted if name in weights}, strict=False)
    return missing


def save_checkpoint(model: BertHead, folder: Path, architecture: str, extra: Mapping[str, object]) -> None:
    """Write `config.json` and `model.safetensors` so that `transformers` loads them; `extra` goes into the config."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if name != "cls.predictions.decoder.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": [architecture], **extra}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
