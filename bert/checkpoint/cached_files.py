"""Files in huggingface_hub's cache, compared with the sizes and hashes that the hub lists."""

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


def origin(folder: Path) -> dict[str, str]:
    """Return `repo` and `commit` of a folder that `download` returned; nothing for any other."""
    # The cache's documented layout: models--org--name/snapshots/COMMIT.
    repo = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not repo.startswith("models--"):
        return {}
    return {"repo": repo.removeprefix("models--").replace("--", "/"), "commit": folder.name}


def check_whole(folder: Path, names: Iterable[str], hashes: Mapping[str, str] | None = None) -> None:
    """Compare files of a model of the hub with what the hub lists; `hashes` has each sha256 that is known already.

    Raises CheckpointError for one that is damaged. Other folders are not looked at.
    """
    for name in damaged_files(folder, names, hashes):
        raise CheckpointError(
            f"{folder / name} is damaged: delete {(folder / name).resolve()}, and run it again to download it"
        )


def damaged_files(folder: Path, names: Iterable[str], hashes: Mapping[str, str] | None = None) -> list[str]:
    """Return the files that are not as the hub lists them."""
    if not origin(folder):
        return []
    listed, known = _listed_files(folder), hashes or {}
    return [name for name in names if not _is_whole(folder / name, listed.get(name), known.get(name))]


def _listed_files(folder: Path) -> "dict[str, RepoFile]":
    """Return what the hub listed of a snapshot; nothing where another program filled the cache."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return {}
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    place = origin(folder)
    try:
        found = get_cached_repo_tree(place["repo"], revision=place["commit"], cache_dir=folder.parents[2])
    except (CachedRepoTreeNotFoundError, ValueError):
        return {}
    return {file.path: file for file in found}


def _is_whole(file: Path, listed: "RepoFile | None", sha256: str | None) -> bool:
    """Tell whether a file has the listed size and hash: sha256 of a large file, git's sha1 of any other."""
    size, large = file.stat().st_size, file.resolve().name  # the cache calls a large file by its sha256
    if listed is not None:
        if size != listed.size:
            return False
        if listed.lfs is None:
            is_known = _SHA1.fullmatch(listed.blob_id) is not None
            return not is_known or _digest(file, "sha1", b"blob %d\0" % size) == listed.blob_id
        large = listed.lfs.sha256
    return _SHA256.fullmatch(large) is None or (sha256 or _digest(file, "sha256")) == large


def _digest(file: Path, kind: str, before: bytes = b"") -> str:
    with file.open("rb") as stream:
        begun = hashlib.new(kind, before, usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: begun).hexdigest()
