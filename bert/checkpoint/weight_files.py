"""The files of a checkpoint folder that hold its weights."""

from pathlib import Path

from bert.errors import CheckpointError, displayed
from bert.files import absence, read_json

_DESCRIPTIONS = ("config.json", "adapter_config.json", "task.json", "gliner_config.json")
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# The first that is there is read. An index names the files of weights in shards.
_SOURCES = (WEIGHTS, WEIGHTS_INDEX, PICKLED, PICKLED_INDEX)
_SAVE = "checkpoint.json"
"""Manifest of a save that a run resumes from."""


def has_weights(folder: Path) -> bool:
    """Tell whether a folder holds weights of its own, whole or in shards."""
    return any((folder / name).is_file() for name in _SOURCES)


def find_checkpoint(folder: Path) -> Path:
    """Return the folder; of a run's folder `best/` (bert-finetune) or `model/` (bert-pretrain).

    Raises CheckpointError for a run that has written neither, and for a save of a run.
    """
    if has_weights(folder) or any((folder / name).is_file() for name in _DESCRIPTIONS):
        return folder
    run = folder.parent.parent if (folder / _SAVE).is_file() else folder
    found = next((run / name for name in ("best", "model") if (run / name).is_dir()), None)
    if found is None and (run / "checkpoints").is_dir():
        raise CheckpointError(
            f"the run of {run} has written no checkpoint yet: its own command finishes it, --max-steps ends it sooner"
        )
    if found is not None and run != folder:
        raise CheckpointError(f"{folder} is what a run resumes from, and no checkpoint: give {found}")
    return found or folder


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, else `pytorch_model.bin`, each whole or as the shards that its index names.

    Raises CheckpointError if one is not there.
    """
    source = next((folder / name for name in _SOURCES if (folder / name).is_file()), folder / WEIGHTS)
    files = [folder / shard for shard in _shards(source)] if source.suffix == ".json" else [source]
    for file in files:
        try:
            is_there = file.is_file()
        except OSError as error:  # its name is too long
            raise CheckpointError(
                f"{folder} has a shard {displayed(file.name)!r} that cannot be read: {error.strerror}"
            ) from None
        if not is_there:
            raise CheckpointError(f"{file} {absence(file)}")
    return files


def _shards(index: Path) -> list[str]:
    try:
        names = read_json(index)["weight_map"].values()
    except CheckpointError as error:
        raise CheckpointError(f"{index} is not an index of weights: {error}") from None
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not an index of weights: {error!r}") from None
    if not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{index} is not an index of weights: it must name a file for each tensor")
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder")
    return sorted(set(names))
