"""A `config.json` on the disk, and what tells that it describes another body than those that are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert.bodies.family import Family
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.files import read_json

# Keys whose presence says that a file with `model_type: bert` holds another graph (MosaicBERT and code on the hub).
_FOREIGN_KEYS = {
    "alibi_starting_size": "its positions are ALiBi slopes, not learned embeddings",
    "auto_map": "its model is Python code that comes with the checkpoint, which is never run; delete the key if "
    "the weights need none of it",
}
# The same of keys whose value may be empty.
_FOREIGN_VALUES = {
    "pruned_heads": "its layers differ in the number of their attention heads; save the model unpruned",
    "quantization_config": "its weights are quantised; export the model that it was made from",
}


def read_values(path: Path) -> dict[str, Any]:
    """Return the content of a `config.json`, given itself or its folder. Raises CheckpointError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        values = read_json(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: a checkpoint folder holds config.json") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds {type(values).__name__}, not an object")
    return values


def refuse_other_graphs(values: Mapping[str, Any], family: Family) -> None:
    """Raise UnsupportedModelError, with the reason, if a `config.json` describes another body than BERT's.

    Raises ConfigError for a list of classes that is none.
    """
    names = values.get("architectures")
    if names is not None and not (
        isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    ):
        raise ConfigError(f"architectures ({names!r}) must be a list of names of classes")
    for key, reason in _FOREIGN_KEYS.items():
        if key in values:
            raise UnsupportedModelError(f"the config has {key!r}, so this is not plain BERT: {reason}")
    position_type = values.get("position_embedding_type") or "absolute"
    if position_type != "absolute":
        raise UnsupportedModelError(
            f"position_embedding_type is {position_type!r}; plain BERT has 'absolute' (learned) positions"
        )
    if values.get("is_decoder"):
        raise UnsupportedModelError("is_decoder is true; an encoder is needed")
    for key, reason in _FOREIGN_VALUES.items():
        if values.get(key):
            raise UnsupportedModelError(f"the config has {key!r}: {reason}")
    if values.get("use_task_id") and family.model_type == "bert":
        raise UnsupportedModelError(
            "use_task_id is true, so this is an ERNIE that was saved as a BERT: set model_type to 'ernie'"
        )
    for key, needed in family.config_required.items():
        if (found := values.get(key, needed)) != needed:
            raise UnsupportedModelError(f"{key} is {found!r}; only {needed!r} is read")
