"""Bundle folders among the configured paths, and their manifests."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from bert.bundle import MANIFEST, MODEL, TOKENIZER, creation_time, read_bundle
from bert.errors import BertError, BundleError
from bert.files import read_regular
from bert.manifest import CUDA, PROVIDER_OF_LAYOUT, Manifest
from bert.tasks.spec import TASK_NAMES
from service.engine.loaded_model import LeftOut

NAME_IN_MANIFEST = re.compile(r'\A\s*\{\s*"name":\s*"([^"\\]+)"')
TASK_IN_MANIFEST = re.compile(r'"task":\s*\{[^{}]*?"task":\s*"(\w+)"')

Known = Mapping[Path, tuple[str, str]]
"""Folder → name and task of each bundle that an earlier engine process found, in its order."""
NONE_KNOWN: Known = {}
FileStates = Mapping[str, tuple[int, int]]
"""Name → size and time of each file in a folder."""


def bundle_folders(paths: Iterable[Path], known: Known = NONE_KNOWN) -> list[Path]:
    """Return the bundle folders among the paths and directly inside them, the oldest first inside a path.

    The first of a task is its default, so a bundle added later does not become it. If any are `known` these are returned,
    whatever is there by now: an engine process that starts again serves what was served before. Raises BundleError for
    a path without a bundle.
    """
    if known:
        return list(known)
    found: list[Path] = []
    for path in paths:
        if (path / MANIFEST).is_file():
            found.append(path)
            continue
        # A folder that has other files of a bundle but no manifest was copied in part: report it instead of skipping it.
        parts = (file.parent for name in (MANIFEST, MODEL, TOKENIZER) for file in path.glob(f"*/{name}"))
        inside = sorted(
            {folder for folder in parts if not folder.name.startswith(".")},
            key=lambda folder: (creation_time(folder), folder.name),
        )
        if not inside:
            what = "holds no bundle" if path.is_dir() else "is no folder"
            raise BundleError(
                f"{path} {what}: make one with bert-export, or the demo ones with `bert-export --demo "
                f"--out {path}`"
            )
        found += inside
    return list(dict.fromkeys(found))


def read_manifests(
    paths: Iterable[Path], *, strict: bool = False, known: Known = NONE_KNOWN
) -> list[Manifest | LeftOut]:
    """Read the manifest of each bundle and no other file.

    A bundle that cannot be read is left out, or raised if `strict`. Raises BundleError if there are no bundles.
    """
    found = list[Manifest | LeftOut]()
    for folder in bundle_folders(paths, known):
        try:
            found.append(read_bundle(folder, verify_hashes=False).manifest)
        except Exception as error:
            if strict:
                raise
            found.append(left_out(folder, error))
    return found


def left_out(folder: Path, error: Exception, known: Known = NONE_KNOWN) -> LeftOut:
    """Describe a bundle that could not be loaded; what its manifest does not say is as it was known."""
    reason = str(error) if isinstance(error, BertError) else f"{folder} cannot be loaded: {error!r}"
    name, task = known.get(folder, (folder.resolve().name, ""))
    with suppress(OSError):
        # A manifest that was cut off is searched too, so that the bundle stays the default of its task.
        text = read_regular(folder / MANIFEST).decode("utf-8", "replace")
        if (found := NAME_IN_MANIFEST.search(text)) is not None:
            name = found[1]
        if (found := TASK_IN_MANIFEST.search(text)) is not None and found[1] in TASK_NAMES:
            task = found[1]
    return LeftOut(name, task, reason)


def all_on_gpu(paths: Iterable[Path], known: Known = NONE_KNOWN) -> bool:
    """Tell whether every readable bundle is for a GPU. Raises BundleError if there are none."""
    manifests = [found for found in read_manifests(paths, known=known) if isinstance(found, Manifest)]
    return bool(manifests) and all(PROVIDER_OF_LAYOUT[each.layout] == CUDA for each in manifests)


def file_states(folder: Path) -> FileStates:
    """Return size and time of each file, which change when it is replaced or written to; nothing for no folder."""
    # Not the inodes: network file systems may change them.
    with suppress(OSError):
        found = {file.name: file.stat() for file in folder.iterdir()}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}
    return {}


class LeftOutFolders:
    """Folders of bundles that could not be loaded, and their files as they were then."""

    def __init__(self, files: Mapping[Path, FileStates]) -> None:
        """Take the files with which each bundle was tried."""
        self._tried, self._seen = dict(files), dict(files)

    def __bool__(self) -> bool:
        """Tell whether any is left."""
        return bool(self._tried)

    def changed(self) -> list[Path]:
        """Return the folders to try again: their files have changed, and stayed the same since the last call.

        A bundle that is still being copied is thus not read over and over.
        """
        now = {folder: file_states(folder) for folder in self._tried}
        found = [
            folder for folder, files in now.items() if files == self._seen[folder] != self._tried[folder]
        ]
        self._seen, self._tried = now, self._tried | {folder: now[folder] for folder in found}
        return found

    def remove(self, folder: Path) -> None:
        """Forget a folder whose bundle was loaded."""
        del self._tried[folder]
