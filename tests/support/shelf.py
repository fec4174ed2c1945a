"""An object store in a folder, with faults: `shelf://bucket/path`, for this process only."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec

from bert.bundle import MANIFEST
from service.exports.prepare import prepare
from service.settings import ServeSettings
from tests.support.tiny import SPECS, write_tiny_bundle

URL = "shelf://bucket/models"


class Shelf(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Serves the files below `root`, notes what is read, and does what `fault` says before each read."""

    protocol = "shelf"
    root: ClassVar[Path]
    read: ClassVar[list[str]]
    """Paths of the files that were read."""
    fault: ClassVar[Callable[[str], None]]
    _lock: ClassVar = threading.Lock()

    @classmethod
    def open_at(cls, root: Path) -> None:
        """Serve a folder from now on."""
        fsspec.register_implementation("shelf", cls, clobber=True)
        cls.root, cls.read, cls.fault = root, [], staticmethod(lambda path: None)

    @classmethod
    def taken(cls) -> list[str]:
        """Return the names of the files that were read since the last call, sorted."""
        with cls._lock:
            found, cls.read = sorted(Path(path).name for path in cls.read), []
        return found

    def _place(self, path: str) -> Path:
        return self.root / str(self._strip_protocol(path)).lstrip("/")

    def _begin(self, path: str) -> Path:
        type(self).fault(path)
        place = self._place(path)
        if not place.is_file():
            raise FileNotFoundError(path)
        with self._lock:
            self.read.append(path)
        return place

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        return self._begin(path).read_bytes()

    def get_file(self, rpath: str, lpath: Any, *more: Any, **options: Any) -> None:
        shutil.copyfile(self._begin(rpath), lpath)

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        place = self._place(path)
        if not place.exists():
            raise FileNotFoundError(path)
        found, kind = place.stat(), "directory" if place.is_dir() else "file"
        return {"name": path, "size": found.st_size, "type": kind, "mtime": found.st_mtime_ns}

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        self.info(path)
        found = [self.info(f"{path}/{child.name}") for child in sorted(self._place(path).iterdir())]
        return found if detail else [each["name"] for each in found]


def fetched(cache: Path, *urls: str, **more: Any) -> ServeSettings:
    """Return the settings of a service that starts with URLs."""
    return prepare(ServeSettings(bundles=[Path(url) for url in urls or [URL]], model_cache=cache, **more))


def renew(bundle: Path, seed: int, version: str = "2") -> None:
    """Replace a bundle in its store, the manifest last: another graph, the same tokenizer and tables."""
    aside = bundle.parents[2] / f"aside-{seed}"
    write_tiny_bundle(aside, bundle.name, SPECS[bundle.name], seed, version=version)
    for file in sorted(aside.iterdir(), key=lambda each: each.name == MANIFEST):
        shutil.copyfile(file, bundle / file.name)
    shutil.rmtree(aside)
