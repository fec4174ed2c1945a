"""Bundle folders among the configured paths, and what their manifests say."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bert.bundle import MANIFEST, MODEL, TOKENIZER, creation_time, read_bundle
from bert.errors import BundleError
from bert.files import read_regular
from bert.manifest import CUDA, PROVIDER_OF_LAYOUT
from bert.tasks.spec import TASK_NAMES

NAMES_IN_MANIFEST = re.compile(r'\A\s*\{\s*"name":\s*"([^"\\]+)"(?:,\s*"version":\s*"([^"\\]+)")?')
TASK_IN_MANIFEST = re.compile(r'"task":\s*\{[^{}]*?"task":\s*"(\w+)"')

FileStates = Mapping[str, tuple[int, int]]
"""Name → size and time of each file in a folder."""


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """Name, task and provider of the bundle in a folder, as far as its manifest can be read."""

    name: str
    """Name in the manifest, or the folder's if that cannot be read."""
    task: str = ""
    """Task in the manifest; empty if that cannot be read."""
    provider: str = ""
    """Execution provider of its graph; empty if the bundle cannot be read."""
    created: str = ""
    """Time at which the folder first got a bundle."""
    version: str = ""
    """Version in the manifest; empty if that was not asked for or cannot be read."""

    def is_called(self, name: str) -> bool:
        """Tell whether a request for NAME, or for NAME@VERSION, means it."""
        return name in (self.name, f"{self.name}@{self.version}")


FoundBundles = Mapping[Path, FoundBundle]
"""Bundles by their folders, in the order that decides which is the default of its task."""


def find_bundles(paths: Iterable[Path], *, strict: bool = False) -> dict[Path, FoundBundle]:
    """Return the bundles among the paths and directly inside them, the oldest first inside a path.

    The first of a task is its default, so a bundle added later does not become it. Reads each manifest once, and no other
    file. Raises BundleError for a path without a bundle and, with `strict`, for a bundle that cannot be read.
    """
    found = dict[Path, FoundBundle]()
    for path in paths:
        if (path / MANIFEST).is_file():
            found.setdefault(path, _found_in(path, strict=strict))
            continue
        # A folder that has other files of a bundle but no manifest was copied in part: report it instead of skipping it.
        parts = (file.parent for name in (MANIFEST, MODEL, TOKENIZER) for file in path.glob(f"*/{name}"))
        inside = {
            folder: _found_in(folder, strict=strict)
            for folder in set(parts)
            if not folder.name.startswith(".")
        }
        if not inside:
            what = "holds no bundle" if path.is_dir() else "is not a folder"
            raise BundleError(
                f"{path} {what}: make one with bert-export, or the demo ones with `bert-export --demo "
                f"--out {path}`"
            )
        by_age = sorted(inside, key=lambda folder: (inside[folder].created, folder.name))
        found = {**found, **{folder: inside[folder] for folder in by_age}}
    return found


def _found_in(folder: Path, *, strict: bool) -> FoundBundle:
    try:
        manifest = read_bundle(folder, verify_hashes=False).manifest
    except Exception:
        if strict:
            raise
        return readable_part(folder)
    provider = PROVIDER_OF_LAYOUT[manifest.layout]
    return FoundBundle(manifest.name, manifest.task.task, provider, manifest.created)


def readable_part(folder: Path, known: FoundBundle | None = None) -> FoundBundle:
    """Describe a bundle that could not be loaded; what its manifest does not say is as it was `known`."""
    name, task, version = (known.name, known.task, "") if known else (folder.resolve().name, "", "")
    with suppress(OSError):
        # A manifest that was cut off is searched too, so that the bundle stays the default of its task.
        text = read_regular(folder / MANIFEST).decode("utf-8", "replace")
        if (found := NAMES_IN_MANIFEST.search(text)) is not None:
            name, version = found[1], found[2] or ""
        if (found := TASK_IN_MANIFEST.search(text)) is not None and found[1] in TASK_NAMES:
            task = found[1]
    return FoundBundle(name, task, created=creation_time(folder), version=version)


def all_on_gpu(found: FoundBundles) -> bool:
    """Tell whether every readable bundle is for a GPU."""
    return {each.provider for each in found.values() if each.provider} == {CUDA}


def file_states(folder: Path) -> FileStates:
    """Return size and time of each file, which change when it is replaced or written to; nothing for no folder."""
    # Not the inodes: network file systems may change them.
    with suppress(OSError):
        found = {file.name: file.stat() for file in folder.iterdir()}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}
    return {}


def settled(
    now: Mapping[Path, FileStates], seen: Mapping[Path, FileStates], tried: Mapping[Path, FileStates]
) -> list[Path]:
    """Return the folders to try again: their files have changed since then, but not since they were last `seen`.

    A bundle that is still being copied is thus not read over and over.
    """
    return [folder for folder, files in now.items() if files == seen.get(folder) != tried.get(folder)]
