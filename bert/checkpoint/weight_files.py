"""The files of a checkpoint folder that hold its weights. Pickles, which can run any code, are never among them."""

import json
from pathlib import Path

from bert.errors import CheckpointError

_DESCRIPTIONS = ("config.json", "adapter_config.json", "task.json")
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def has_weights(folder: Path) -> bool:
    """Tell whether a folder holds weights of its own, whole or in shards."""
    return (folder / WEIGHTS).is_file() or (folder / WEIGHTS_INDEX).is_file()


def find_checkpoint(folder: Path) -> Path:
    """Return the folder, or `best/` in it where it is that of a run of bert-finetune."""
    is_checkpoint = has_weights(folder) or any((folder / name).is_file() for name in _DESCRIPTIONS)
    best = folder / "best"
    return best if best.is_dir() and not is_checkpoint else folder


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, or the shards that its index names. Raises CheckpointError if one is not there."""
    index = folder / WEIGHTS_INDEX
    if index.is_file() and not (folder / WEIGHTS).is_file():
        files = [folder / shard for shard in _shards(index)]
    else:
        files = [folder / WEIGHTS]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is None:
        return files
    if any(folder.glob("pytorch_model*.bin")):
        raise CheckpointError(
            f"{folder} holds its weights as a pickle, which can run any code; convert it to {WEIGHTS} first"
        )
    raise CheckpointError(f"{missing} is missing")


def _shards(index: Path) -> list[str]:
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not an index of weights: {error!r}") from None
    if not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{index} is not an index of weights: it must name a file for each tensor")
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder")
    return sorted(set(names))
