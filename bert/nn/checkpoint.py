"""Checkpoint folders in Hugging Face's format: `config.json`, `model.safetensors` and their traps."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, equal

from bert.config import BertConfig
from bert.errors import CheckpointError, UnsupportedModelError
from bert.nn.heads import BertHead

# What an encoder-only checkpoint begins with, where one with a head says `bert.embeddings`.
_BARE = re.compile(r"^(embeddings|encoder|pooler)\.")
# Buffers of old checkpoints, and the second name of a tied bias.
_DROPPED = re.compile(r"embeddings\.(position_ids|token_type_ids)$|cls\.predictions\.decoder\.bias$")
_ENCODER = ("bert.embeddings.", "bert.encoder.")
_EMBEDDING, _DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


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
    """Read `model.safetensors` (or its shards) with normalised names. Pickles are never loaded.

    Raises CheckpointError for what is missing or damaged.
    """
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from None
    return normalise_names(weights)


def load_into(model: BertHead, folder: Path) -> list[str]:
    """Fill a model from a checkpoint and return the names that kept their fresh weights.

    Only a head and the pooler may be missing; anything missing from the encoder, left over of it, or of another
    shape, raises CheckpointError. Tensors of other heads in the file are left out.
    """
    weights, wanted = read_weights(folder), model.state_dict()
    missing = [name for name in wanted if name not in weights and name != _DECODER]
    wrong = [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    wrong += [f"{name} is missing" for name in missing if name.startswith(_ENCODER)]
    wrong += [
        f"{name} is not in BERT" for name in weights if name.startswith(_ENCODER) and name not in wanted
    ]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"{folder} does not fit its config: {'; '.join(wrong[:5])}{more}")
    if _DECODER in wanted and _DECODER in weights and not equal(weights[_DECODER], weights[_EMBEDDING]):
        raise UnsupportedModelError(f"{folder}: {_DECODER} is not the word embedding, as it is in plain BERT")
    model.load_state_dict({name: weights[name] for name in wanted if name in weights}, strict=False)
    return missing


def save_checkpoint(model: BertHead, folder: Path, architecture: str, extra: Mapping[str, object]) -> None:
    """Write `config.json` and `model.safetensors` so that `transformers` loads them; `extra` goes into the config."""
    weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    save_weights(weights, model.config, folder, architecture, extra)


def save_weights(
    weights: Mapping[str, Tensor],
    config: BertConfig,
    folder: Path,
    architecture: str,
    extra: Mapping[str, object],
) -> None:
    """Write weights of a BertHead, by its names, as `save_checkpoint` does."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.contiguous() for name, tensor in weights.items() if name != _DECODER}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    values = {**config.to_dict(), "architectures": [architecture], **extra}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        return [folder / shard for shard in _shards(index)]
    if any(folder.glob("pytorch_model*.bin")):
        raise CheckpointError(
            f"{folder} holds its weights as a pickle, which can run any code; convert it to model.safetensors first"
        )
    return [single]


def _shards(index: Path) -> list[str]:
    try:
        names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not an index of weights: {error!r}") from None
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder")
    return sorted(names)
