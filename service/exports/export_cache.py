"""The folder where exported models are kept.

    CACHE/org--name/REVISION.commit           commit that a branch or a tag stood for when it was last looked up
    CACHE/org--name/KEY/NAME/                 bundle of the model that requests call NAME
    CACHE/org--name/KEY/NAME.progress.json    progress of its export, while it is exported in the background

KEY is the commit (of a folder: a hash of its files' sizes and times), the precision, and the version of the exporter.
"""

import fcntl
import hashlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote

from bert.bundle import read_bundle
from bert.errors import BundleError, BundleIntegrityError, ConfigError
from bert.files import atomic_write, clear_left_overs
from bert.names import HubName
from service.exports.named_model import NamedModel
from service.logs import LOGGER
from service.settings import ServeSettings

FIRST = "first"
"""Precision, in a key, of the float32 bundle that a service starts with: it is compared on a handful of texts only."""
LOCK_POLL_S = 0.1
LEFT_OVER_S = 86_400.0
"""Age at which the next export removes what a killed one left: the folder of its key may never be written again."""
_EXPORTER = ("bert", "model_export")
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class ExportCache:
    """Bundles by model, revision, precision and exporter."""

    folder: Path
    precision: str

    def bundle(self, model: NamedModel, commit: str) -> Path:
        """Return the folder that the model's bundle has, or will have."""
        key = f"{commit}-{self.precision}-{exporter_version()}"
        return self.folder / model.slug / key / model.name

    def commit(self, model: NamedModel) -> str | None:
        """Return the commit that a model of the hub stood for last; None if that was not looked up yet."""
        hub = model.hub
        if hub is None:
            return model.folder_state()
        if hub.is_pinned:
            return hub.revision
        try:
            return self._commit_file(model, hub).read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def remember(self, model: NamedModel, commit: str) -> None:
        """Keep the commit that a branch or a tag stands for. Raises OSError."""
        if (hub := model.hub) is not None and not hub.is_pinned:
            atomic_write(self._commit_file(model, hub), commit + "\n")

    def _commit_file(self, model: NamedModel, hub: HubName) -> Path:
        return self.folder / model.slug / f"{quote(hub.revision or _MAIN, safe='')}.commit"

    @contextmanager
    def lock(self, model: NamedModel, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Wait until no other process exports this model in this precision, or until this one is stopped.

        Gives the lock's descriptor, which a child may inherit. Raises BundleError where the folder cannot be written.
        """
        place = self.folder / model.slug
        try:
            place.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place / f".{self.precision}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BundleError(
                f"{place} cannot be written: {error.strerror}; name another folder as BERT_SERVE_MODEL_CACHE"
            ) from None
        try:
            _wait_for(descriptor, model, is_stopped)
            clear_left_overs(self.folder.glob("*/*/.*.partial-*"), time.time() - LEFT_OVER_S)
            yield descriptor
        finally:
            os.close(descriptor)


def cache_of(settings: ServeSettings) -> ExportCache:
    """Return the cache that the settings name. Raises ConfigError."""
    try:
        folder = settings.model_cache.expanduser()
    except RuntimeError:  # a container's user may have neither HOME nor an entry in /etc/passwd
        raise ConfigError(
            f"model_cache {settings.model_cache}: this user has no home; name a folder as BERT_SERVE_MODEL_CACHE"
        ) from None
    return ExportCache(folder, settings.model_precision)


def bundle_fault(folder: Path, *, verify_hashes: bool) -> BundleError | None:
    """Return the reason why no whole bundle of this version is there; None if one is."""
    try:
        read_bundle(folder, verify_hashes=verify_hashes)
    except BundleError as error:
        return error
    except OSError as error:
        return BundleIntegrityError(f"{folder} cannot be read: {error}")
    return None


@cache
def exporter_version() -> str:
    """Return a text that changes with this program's version, and with any file of the exporter."""
    found = hashlib.sha256()
    for package in _EXPORTER:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for file in sorted(Path(place).rglob("*.py")):
                found.update(str(file.relative_to(place)).encode() + b"\0" + file.read_bytes())
    try:
        number = version("bert-train-serve")
    except PackageNotFoundError:  # run from a source tree
        number = "source"
    return f"{number}-{found.hexdigest()[:12]}"


def _wait_for(descriptor: int, model: NamedModel, is_stopped: Callable[[], bool]) -> None:
    for attempt in itertools.count():
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not attempt:
                LOGGER.info("%s is being exported by another process, which is waited for", model.name)
        except OSError:
            return None  # a disk without locks: two exports at once are wasted work, and no more
        if is_stopped():
            return None
        time.sleep(LOCK_POLL_S)
