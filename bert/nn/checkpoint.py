"""Checkpoint folders in Hugging Face's format to torch and back: `config.json`, `model.safetensors` and their traps."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, equal, from_numpy

from bert.bodies.body import EMBEDDING
from bert.checkpoint import weights as arrays
from bert.checkpoint.tensor_names import DECODER, ENCODER
from bert.checkpoint.weight_files import WEIGHTS
from bert.config import BertConfig
from bert.errors import CheckpointError, UnsupportedModelError
from bert.nn.heads import BertHead


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the arrays of `bert.checkpoint.weights.read_weights` as tensors. Raises CheckpointError as that does."""
    return {name: from_numpy(values) for name, values in arrays.read_weights(folder).items()}


def load_into(model: BertHead, folder: Path) -> list[str]:
    """Fill a model from a checkpoint and return the names that kept their fresh weights.

    Only a head and the pooler may be missing; anything missing from the encoder, left over of it, or of another
    shape, raises CheckpointError. Tensors of other heads in the file are left out.
    """
    weights, wanted = read_weights(folder), model.state_dict()
    missing = [name for name in wanted if name not in weights and name != DECODER]
    wrong = [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    wrong += [f"{name} is missing" for name in missing if name.startswith(ENCODER)]
    wrong += [f"{name} is not in BERT" for name in weights if name.startswith(ENCODER) and name not in wanted]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"{folder} does not fit its config: {'; '.join(wrong[:5])}{more}")
    if DECODER in wanted and DECODER in weights and not equal(weights[DECODER], weights[EMBEDDING]):
        raise UnsupportedModelError(f"{folder}: {DECODER} is not the word embedding, as it is in plain BERT")
    model.load_state_dict({name: weights[name] for name in wanted if name in weights}, strict=False)
    return missing


def save_checkpoint(
    model: BertHead,
    folder: Path,
    architecture: str,
    extra: Mapping[str, object],
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` so that `transformers` loads them; `extra` goes into the config.

    `weights` are by default the model's own.
    """
    own = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()} if not weights else {}
    save_weights(weights or own, model.config, folder, architecture, extra)


def save_weights(
    weights: Mapping[str, Tensor],
    config: BertConfig,
    folder: Path,
    architecture: str,
    extra: Mapping[str, object],
) -> None:
    """Write weights of a BertHead, by its names, as `save_checkpoint` does.

    The files are in the words of the config's family; `architecture` is the name of BERT's class.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.contiguous() for name, tensor in weights.items() if name != DECODER}
    save_file(
        config.family.own_weights(kept, architecture, asdict(config)),
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )
    values = {**config.to_dict(), "architectures": [config.family.own_class(architecture)], **extra}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
