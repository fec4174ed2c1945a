"""Copies of the bundles that are served and of those that were, by the hash of their manifests.

A bundle's folder may change at any time. The copies let a model go back to the version before, and an engine process
that starts again serve what was served. They are copies and not hard links, since a file that is overwritten in place
changes under all its names; where the file system shares blocks (XFS, Btrfs) they take no room.
"""

import os
import pickle
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bert.bundle import MANIFEST, manifest_sha256, read_bundle
from bert.errors import BertError, BundleIntegrityError
from bert.files import atomic_dir, atomic_write
from service.engine.bundle_folders import FileStates
from service.logs import LOGGER
from service.settings import ServeSettings

RECORD = "served.pickle"
"""Name of the file in the runtime directory that says what is served."""
COPIED_AT_ONCE = 2**26
"""Bytes copied in one call."""


@dataclass(frozen=True, slots=True)
class Record:
    """What an engine process serves, for the one that takes its place. The keys are folders of bundles."""

    file: Path | None = None
    """File in which it is; None for a process that is not replaced."""
    names: Mapping[Path, tuple[str, str]] = field(default_factory=dict)
    """Name and task of each bundle, in their order."""
    hashes: Mapping[Path, str] = field(default_factory=dict)
    """Hash of the manifest of what is served."""
    sources: Mapping[Path, Path] = field(default_factory=dict)
    """Folder that is looked at for changes: itself, or the one that is served in its place."""
    previous: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """Hashes of the versions before."""
    unloaded: Collection[Path] = ()
    """Models that were unloaded."""
    tried: Mapping[Path, FileStates] = field(default_factory=dict)
    """Files of the source when it was last opened."""
    keeps: bool = False
    """What is served is copied."""

    def write(self) -> None:
        """Write the file; the log says why if that fails."""
        try:
            if self.file is not None:
                atomic_write(self.file, pickle.dumps(self))
        except OSError as error:
            LOGGER.error("what is served cannot be recorded for the next engine process: %s", error)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what the process before wrote; nothing if it wrote nothing."""
        with suppress(OSError):
            record = pickle.loads(file.read_bytes())
            assert isinstance(record, cls)
            return record
        return cls(file)


class Generations:
    """A folder of bundles, each called by the hash of its manifest. Several services may share it."""

    @classmethod
    def of(cls, settings: ServeSettings) -> Self:
        """Return those in the cache of a service's settings."""
        try:
            return cls(settings.model_cache.expanduser() / "generations")
        except RuntimeError:  # a container's user may have no home
            return cls(Path(os.devnull) / "generations")  # where nothing can be written

    def __init__(self, folder: Path) -> None:
        """Make nothing yet."""
        self._folder = folder
        self._locks = dict[str, int]()
        """Hash → open descriptor, of the copies that this process needs."""

    def place(self, sha256: str) -> Path:
        """Return where the copy of a bundle is, if there is one."""
        return self._folder / sha256

    def has(self, sha256: str) -> bool:
        """Tell whether there is a copy."""
        return bool(sha256) and (self.place(sha256) / MANIFEST).is_file()

    def keep(self, source: Path, sha256: str) -> bool:
        """Copy a bundle, unless there is a copy; return whether there is one. The log says why if there is none."""
        place = self.place(sha256)
        try:
            with suppress(FileExistsError):  # another process has made it meanwhile
                if not self.has(sha256):
                    _copy_bundle(source, place)
            self._lock(sha256)
        except (BertError, OSError) as error:
            LOGGER.warning("what is served from %s cannot be kept in %s: %s", source, place, error)
            return False
        return True

    def drop_others(self, needed: Collection[str]) -> None:
        """Remove the copies that neither this process nor another one needs."""
        for sha256 in self._locks.keys() - set(needed):
            os.close(self._locks.pop(sha256))
        for place in self._folder.iterdir() if self._folder.is_dir() else ():
            if place.is_dir() and not place.name.startswith(".") and _is_unused(place):
                shutil.rmtree(place, ignore_errors=True)
                place.with_name(f"{place.name}.tuning.json").unlink(missing_ok=True)

    def _lock(self, sha256: str) -> None:
        """Show other processes that the copy is in use, until this one ends or drops it."""
        import fcntl  # not on Windows

        if sha256 not in self._locks:
            self._locks[sha256] = os.open(self.place(sha256), os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: nobody removes anything there
                fcntl.flock(self._locks[sha256], fcntl.LOCK_SH)


def _is_unused(place: Path) -> bool:
    """Tell whether no process has locked a copy."""
    import fcntl

    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _copy_bundle(source: Path, place: Path) -> None:
    """Copy a bundle whose hash is the name of `place`; raises BundleError and OSError."""
    files = read_bundle(source, verify_hashes=False).manifest.files
    with atomic_dir(place, replace_old=False) as aside:
        for name in (MANIFEST, *files):
            _copy(source / name, aside / name)
        read_bundle(aside)
        if manifest_sha256(aside) != place.name:
            raise BundleIntegrityError(f"{source} was changed since it was loaded")


def _copy(source: Path, target: Path) -> None:
    """Copy a file in the kernel, which shares its blocks where the file system can."""
    with source.open("rb") as read, target.open("xb") as written:
        try:
            while os.copy_file_range(read.fileno(), written.fileno(), COPIED_AT_ONCE):
                pass
        except (AttributeError, OSError):  # not on macOS, nor between all file systems
            read.seek(0)
            written.seek(0)
            shutil.copyfileobj(read, written)
