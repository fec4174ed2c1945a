"""What `--model` names: a model of the hub or a checkpoint folder, and its name in requests."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path

from bert.checkpoint.weight_files import find_checkpoint, has_weights
from bert.errors import BundleError, ConfigError
from bert.files import read_object
from bert.names import HubName, check_model_name

_ALIAS = re.compile(r"(?P<alias>\w[\w.-]*)=(?P<checkpoint>.+)")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One value of `--model`."""

    name: str
    """Name that requests use."""
    checkpoint: str
    """Name of the hub or path of a folder, as it was given."""

    @staticmethod
    def parse(text: str) -> "NamedModel":
        """Read `CHECKPOINT` or `NAME=CHECKPOINT`; by default a model is called by the last part of its checkpoint's name."""
        found = _ALIAS.fullmatch(text)
        if found is not None and not Path(text).is_dir():
            return NamedModel(found["alias"], found["checkpoint"])
        hub = HubName.parse(text)
        return NamedModel(hub.last_part if hub is not None else Path(text).resolve().name, text)

    @property
    def hub(self) -> HubName | None:
        """Name of the hub; None for a folder."""
        return HubName.parse(self.checkpoint)

    @property
    def slug(self) -> str:
        """Name of its folder in the cache."""
        if (hub := self.hub) is not None:
            return hub.repo.replace("/", "--")
        path = Path(self.checkpoint).resolve()
        return f"{path.name}--{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"

    def folder_state(self) -> str:
        """Return a text that changes with the folder's files, and its base's: a hash of their names, sizes and times.

        Raises BundleError where there is no folder.
        """
        folder = Path(self.checkpoint)
        if not folder.is_dir():
            raise BundleError(
                f"{self.checkpoint} is not a folder; give a checkpoint's, or a model of the hub as org/name"
            )
        folder, found = find_checkpoint(folder), hashlib.sha256()
        for place in (folder, *_bases(folder)):
            for file in sorted(file for file in place.rglob("*") if file.is_file()):
                state = file.stat()
                found.update(f"{file.relative_to(place)}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
        return found.hexdigest()[:40]


def _bases(folder: Path) -> list[Path]:
    """Return the folders that a checkpoint without weights of its own, such as an adapter, names as its base."""
    if has_weights(folder):
        return []
    base = read_object(folder / "task.json").get("base")
    names = [base.get("name")] if isinstance(base, dict) else []
    names.append(read_object(folder / "adapter_config.json").get("base_model_name_or_path"))
    return [Path(name) for name in names if isinstance(name, str) and isdir(name)]


def named_models(texts: Iterable[str]) -> list[NamedModel]:
    """Read the values of `--model`. Raises ConfigError if two models would have one name, or one that is not a name."""
    found: dict[str, NamedModel] = {}
    for text in dict.fromkeys(texts):
        model = NamedModel.parse(text)
        try:
            check_model_name(model.name)
        except ConfigError as error:
            raise ConfigError(
                f"model {text}: {error}; give it another, as in NAME={model.checkpoint}"
            ) from None
        if (other := found.setdefault(model.name, model)) is not model:
            raise ConfigError(
                f"model: {other.checkpoint} and {model.checkpoint} would both be called {model.name!r}: give one another "
                f"name, as in --model {model.name}-2={model.checkpoint}"
            )
    return list(found.values())
