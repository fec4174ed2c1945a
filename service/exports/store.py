"""Bundles of an object store, such as `s3://bucket/models`, as folders.

    CACHE/store/files/SHA256         content of a file, whatever bundles have it
    CACHE/store/s3/bucket/models/    copy of what lies at the URL: bundles, whose files are hard links to that content

So only those files of a new version are fetched that no bundle had before. Services of one machine may share the cache.
"""

import asyncio
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from bert.bundle import MANIFEST
from bert.errors import BundleError, BundleIntegrityError, ConfigError
from bert.files import alone_in, atomic_dir, atomic_file, file_sha256
from bert.manifest import Manifest
from service.exports.export_cache import bundle_fault, cache_of
from service.logs import LOGGER
from service.settings import ServeSettings

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses of a start before it tries again what failed. What the store's own library tries again comes on top."""
FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError)
"""Errors of a URL for which nothing is tried again where nothing was fetched before."""
INSTALL = "pip install 'bert-train-serve[store]' for s3://, gcsfs beside it for gs://, adlfs for abfs://"
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/(.+)")


def url_of(path: Path) -> str:
    """Return the URL that a path of the settings stands for, "" for a folder; a Path keeps one slash where it has two."""
    found = _URL.fullmatch(str(path))
    return f"{found[1]}://{found[2]}" if found else ""


def with_fetched(settings: ServeSettings) -> ServeSettings:
    """Return the settings with folders in place of the URLs among their bundles; raises as `Store.fetch_first` does."""
    stores = {
        path: Store(url, cache_of(settings).folder / "store")
        for path in settings.bundles
        if (url := url_of(path))
    }
    for store in stores.values():
        store.fetch_first(is_strict=settings.strict)
    bundles = [stores[path].folder if path in stores else path for path in settings.bundles]
    return settings.model_copy(update={"bundles": bundles}) if stores else settings


def stores_of(settings: ServeSettings) -> "list[Store]":
    """Return the stores whose copies are among the folders of bundles."""
    with suppress(ConfigError):  # a user without a home has no cache
        cache = cache_of(settings).folder / "store"
        below = [path.relative_to(cache) for path in settings.bundles if path.is_relative_to(cache)]
        return [Store(str(path).replace("/", "://", 1), cache) for path in below]
    return []


async def fetch_all(stores: "Sequence[Store]") -> dict[Path, str]:
    """Do `Store.fetch` for each, in a thread that the end of the process does not wait for."""
    done = Future[dict[Path, str]]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        done.set_result({folder: why for store in stores for folder, why in store.fetch().items()})

    threading.Thread(target=run, name="stores", daemon=True).start()
    return await asyncio.wrap_future(done)


class Store:
    """The bundles at a URL, and the folder that is their copy."""

    def __init__(self, url: str, cache: Path) -> None:
        """Fetch nothing yet."""
        self.url, self.folder, self._contents = url, cache / url.replace("://", "/"), cache / "files"
        self._refused = dict[str, Any]()
        """Hash → state of the file in the store that should have it and has not."""

    def fetch_first(self, *, is_strict: bool) -> None:
        """Fetch at the start of a service, and try again what fails.

        Then a bundle is served as it was fetched before, or left out; raises BundleError if none is left, or if `is_strict`.
        """
        LOGGER.info("bundles are looked for at %s", self.url)  # a store that hangs says nothing for long
        for pause_s in (*PAUSES_S, 0.0):
            if not (errors := self.fetch(is_start=True)):
                return
            reasons = "; ".join(dict.fromkeys(errors.values()))
            if pause_s:
                LOGGER.warning("%s; it is tried again in %g s", reasons, pause_s)
                time.sleep(pause_s)
        left_out = [folder.name for folder in errors if bundle_fault(folder, verify_hashes=False)]
        if is_strict or all(bundle_fault(folder, verify_hashes=False) for folder in self._copies()):
            raise BundleError(reasons)
        if left_out:
            LOGGER.error("%s; without %s the others are served", reasons, ", ".join(left_out))
        else:
            LOGGER.error("%s; it is served as it was fetched before", reasons)

    def fetch(self, *, is_start: bool = False) -> dict[Path, str]:
        """Bring the copy up to date; return the folders of the bundles that could not be fetched, and why.

        They stay as they were, and so does a bundle that the store has no more. A start removes the latter, and compares
        the hashes of the files that are there. Of a bundle that was never whole it writes the manifest only, by which the
        bundle is listed.
        """
        errors = dict[Path, str]()
        try:
            import fsspec

            self._contents.mkdir(parents=True, exist_ok=True)
            with alone_in(self._contents):
                remote, root = fsspec.url_to_fs(self.url)
                remote.invalidate_cache()
                manifests = {self.folder / name: each for name, each in _manifests(remote, root).items()}
                gone = set(self._copies()) - set(manifests) if is_start else set()
                for folder in gone:
                    shutil.rmtree(folder)
                made = bool(gone)
                for folder, manifest in manifests.items():
                    place = root if folder == self.folder else f"{root}/{folder.name}"
                    try:
                        made |= self._update(folder, manifest, remote, place, verify=is_start)
                    except Exception as error:
                        errors[folder] = self._failure(error)
                        if is_start and bundle_fault(folder, verify_hashes=False):
                            with suppress(OSError), atomic_dir(folder) as aside:
                                (aside / MANIFEST).write_bytes(manifest)
                if made and not errors:  # else a bundle that failed would be fetched anew
                    for content in self._contents.iterdir():
                        if content.stat().st_nlink == 1:
                            content.unlink()
        except Exception as error:
            if is_start and isinstance(error, FINAL) and not self._copies():
                raise BundleError(self._failure(error)) from None
            errors |= dict.fromkeys(self._copies() or [self.folder], self._failure(error))
        return errors

    def _copies(self) -> list[Path]:
        if (self.folder / MANIFEST).is_file():
            return [self.folder]
        return [file.parent for file in self.folder.glob(f"[!.]*/{MANIFEST}")]

    def _failure(self, error: Exception) -> str:
        advice = f"; {INSTALL}" if isinstance(error, ImportError) else ""
        if isinstance(error, FileNotFoundError):
            advice = " (nothing is there)"  # most libraries say the path only
        return f"{self.url} cannot be fetched: {str(error) or repr(error)}{advice}"

    def _update(self, folder: Path, manifest: bytes, remote: Any, place: str, *, verify: bool) -> bool:
        """Make a bundle's folder anew unless it is as the store has it; return whether it was made."""
        files = Manifest.from_dict(json.loads(manifest)).files
        if not all(PurePosixPath(part).name == part for item in files.items() for part in item):
            raise BundleIntegrityError(f"{place}/{MANIFEST} names files or hashes that are paths")
        file = folder / MANIFEST
        is_same = file.is_file() and file.read_bytes() == manifest
        if is_same and bundle_fault(folder, verify_hashes=verify) is None:
            return False
        contents = {name: self._content(remote, f"{place}/{name}", sha256) for name, sha256 in files.items()}
        with atomic_dir(folder) as aside:
            (aside / MANIFEST).write_bytes(manifest)
            for name, content in contents.items():
                os.link(content, aside / name)
        return True

    def _content(self, remote: Any, place: str, sha256: str) -> Path:
        """Return the file with a content, fetched unless it is there; raises what the store's library and the disk raise."""
        file = self._contents / sha256
        if file.is_file() and file_sha256(file) == sha256:
            return file
        state, began = remote.checksum(place), time.monotonic()
        damaged = BundleIntegrityError(
            f"{place} has not the sha256 of its {MANIFEST}: damaged or half uploaded"
        )
        if self._refused.get(sha256) == state:
            raise damaged
        with atomic_file(file) as stream:
            remote.get_file(place, stream.name)
            size = os.path.getsize(stream.name)
            if file_sha256(Path(stream.name)) != sha256:
                if size == remote.size(place):  # all of it: it is not fetched again before it changes
                    self._refused[sha256] = state
                raise damaged
        LOGGER.info("%s is fetched: %.1f MB in %.1f s", place, size / 1e6, time.monotonic() - began)
        return file


def _manifests(remote: Any, root: str) -> dict[str, bytes]:
    """Return the manifests at a place by the folders there; by "" that of a bundle which lies there itself."""
    with suppress(FileNotFoundError):
        return {"": remote.cat_file(f"{root}/{MANIFEST}")}
    found = dict[str, bytes]()
    for entry in remote.ls(root, detail=True):
        name = PurePosixPath(entry["name"]).name
        if entry["type"] == "directory" and not name.startswith("."):
            with suppress(FileNotFoundError):  # its upload has not ended
                found[name] = remote.cat_file(f"{root}/{name}/{MANIFEST}")
    if not found:
        raise BundleError(f"no bundle is there: upload one, its {MANIFEST} last")
    return found
