"""Checkpoints of the Hugging Face hub, downloaded by huggingface_hub into its cache.

Cache, token, address and offline mode are those of huggingface_hub: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Only
export and training import this module. `python -m bert.checkpoint.hub NAME` prints the commit that a name stands for.
"""

import importlib.util
import io
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.checkpoint import gliclass
from bert.checkpoint.cached_files import check_whole, damaged_files
from bert.checkpoint.gliner import GLINER_CONFIG, LABELS_TOKENIZER, is_gliner, read_config
from bert.checkpoint.hub_answers import check_answers, endpoint, explained
from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_PICKLED, ADAPTER_WEIGHTS, read_adapter_config
from bert.checkpoint.sparse import IDF
from bert.checkpoint.weight_files import PICKLED, PICKLED_INDEX, WEIGHTS, WEIGHTS_INDEX
from bert.config import BertConfig
from bert.errors import BertError, CheckpointError, ConfigError
from bert.names import HubName
from bert.tasks.vectors.sparse_folder import ROUTER
from bert.tasks.vectors.token_folders import ARTIFACT

if TYPE_CHECKING:
    from huggingface_hub import ResolvedRevision

SHOWN_FROM_BYTES = 20_000_000
"""Size of a download from which its tenths are shown."""


@contextmanager
def downloading(what: str, total_bytes: int) -> Iterator[type[Any]]:
    """Print what is downloaded and how long it took; gives the class that huggingface_hub reports its progress to."""
    from tqdm import tqdm

    done_bytes = shown_tenths = 0

    class Progress(tqdm):  # type: ignore[misc]
        """Takes the place of a progress bar, and adds up the bytes of all files."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            nonlocal done_bytes, shown_tenths
            done_bytes += int(n or 0)
            tenths = 10 * done_bytes // max(1, total_bytes)
            if shown_tenths < tenths < 10 and total_bytes >= SHOWN_FROM_BYTES:
                shown_tenths = tenths
                _write(f"{10 * tenths} % ")
            return super().update(n)

        def update_transfer(self, n: float | None = 1) -> None:
            """No-op: received bytes are counted when they are written."""

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            """No-op: a rate is not shown."""

    _write(f"  downloading {what} ({total_bytes / 1e6:,.1f} MB) ... ")
    start = time.perf_counter()
    try:
        yield Progress
    except BaseException:
        _write("failed\n")
        raise
    _write(f"{time.perf_counter() - start:.1f} s\n")


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


INSTALL = 'pip install ".[export]" in a clone of the repository'
DESCRIPTIONS = ["config.json", ADAPTER_CONFIG, GLINER_CONFIG, ROUTER]
"""Files that are downloaded and checked before any other."""
_TEXTS = frozenset(
    (
        *DESCRIPTIONS, "task.json",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        *(f"{LABELS_TOKENIZER}/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
        "vocab.txt", "vocab.json", "merges.txt",
        "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model",
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", ARTIFACT, IDF,
    )
)  # fmt: skip
_MODULE_CONFIG = re.compile(r"\d+_\w+/config\.json")
_DENSE = re.compile(r"(\d+_Dense/)[^/]+")
_ROUTE = re.compile(r"((?:query|document)_\d+_\w+/)([^/]+)")
"""A file of a module of a router's route."""
_SHARD = re.compile(r"(?:pytorch_)?model-\d+-of-\d+\.(?:safetensors|bin)")
MAIN = "main"
SPARE_BYTES = 64 << 20
"""Bytes that must stay free on the disk beyond a download."""


@lru_cache
def download(name: HubName) -> Path:
    """Return the folder of a model's files in the cache; those that are missing are downloaded first.

    The main branch and tags are looked up once a process. Raises CheckpointError with what to do about it, and the errors
    of `BertConfig` and of adapters for a model that is not read, before its weights are downloaded.
    """
    with explained(name):
        return _download(name)


@lru_cache
def download_texts(name: HubName) -> Path:
    """Return the folder of a model's files without its weights. Raises as `download` does."""
    with explained(name):
        revision, folder = _describe(name)
        sizes = _sizes(name, revision, folder)
        _fetch(name, revision, folder, {file: sizes[file] for file in sizes.keys() & _TEXTS})
    return folder


def commit_of(name: HubName) -> str:
    """Return the commit that a name stands for now, after a look at its config. Raises as `download` does."""
    with explained(name):
        return _describe(name)[0].resolved


def wanted_files(listed: list[str]) -> list[str]:
    """Return the files of a model that are read: never code, and pickled weights only where there are no others."""
    names = set(listed)
    wanted = {name for name in names if name in _TEXTS or _MODULE_CONFIG.fullmatch(name)}
    routed = [found for name in names if (found := _ROUTE.fullmatch(name))]
    wanted |= {found[0] for found in routed if found[2] in _TEXTS}
    modules = {found[1] for name in names if (found := _DENSE.fullmatch(name))}
    for folder in ("", *modules, *{found[1] for found in routed}):
        wanted |= _weights(folder, names)
    if not _weights("", names):
        wanted |= _adapter(names)
    return sorted(wanted)


def _adapter(names: Collection[str]) -> set[str]:
    return {next((name for name in (ADAPTER_WEIGHTS, ADAPTER_PICKLED) if name in names), "")} - {""}


def _weights(folder: str, names: set[str]) -> set[str]:
    for whole, index in ((WEIGHTS, WEIGHTS_INDEX), (PICKLED, PICKLED_INDEX)):
        if f"{folder}{whole}" in names:
            return {f"{folder}{whole}"}
        if f"{folder}{index}" in names:
            kind = Path(whole).suffix
            return {f"{folder}{index}", *(n for n in names if _SHARD.fullmatch(n) and n.endswith(kind))}
    return set()


def _has_weights(names: set[str]) -> bool:
    """Tell whether the files hold a model's weights, or an adapter's; a router's model may be in a folder of its own."""
    routed = {found[1] for name in names if (found := _ROUTE.fullmatch(name)) and name.startswith("document")}
    return bool(_adapter(names)) or any(_weights(folder, names) for folder in ("", *routed))


def _download(name: HubName) -> Path:
    revision, folder = _describe(name)
    sizes = _sizes(name, revision, folder)
    if not _has_weights(set(sizes)):
        raise CheckpointError(
            f"{name} on the hub holds neither {WEIGHTS} nor {PICKLED}: take the repository of the original weights"
        )
    _fetch(name, revision, folder, {file: sizes[file] for file in wanted_files(list(sizes))})
    return folder


def _fetch(name: HubName, revision: "ResolvedRevision", folder: Path, sizes: Mapping[str, int]) -> None:
    """Download those of some files that are missing, and compare all with what the hub lists."""
    from huggingface_hub import hf_hub_download

    missing = [file for file in sorted(sizes) if not (folder / file).is_file()]
    if missing:
        total_bytes = sum(sizes[file] for file in missing)
        _check_space(name, total_bytes)
        with downloading(str(name), total_bytes) as progress:
            for file in missing:  # in this thread, so that Ctrl-C ends it at once
                hf_hub_download(name.repo, file, revision=revision, tqdm_class=progress)
            _check_downloaded(name, folder, missing)
    check_whole(folder, [file for file in sizes if file not in missing])


def _check_downloaded(name: HubName, folder: Path, files: Collection[str]) -> None:
    """Delete files whose content is not what the hub lists, so that another run downloads them again."""
    if not (damaged := damaged_files(folder, files)):
        return
    for file in damaged:
        (folder / file).resolve().unlink()
        (folder / file).unlink(missing_ok=True)
    raise CheckpointError(
        f"{', '.join(damaged)} of {name} came with other content than {endpoint()} lists, and was deleted: run it again; "
        f"if it stays so, delete {folder.parents[1]}, and check HF_ENDPOINT and proxies"
    )


def _sizes(name: HubName, revision: "ResolvedRevision", folder: Path) -> dict[str, int]:
    """Return the model's files and their sizes in bytes, by their paths in the repository."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {file.path: file.size for file in get_cached_repo_tree(name.repo, revision=revision)}
    except CachedRepoTreeNotFoundError:
        # Offline, over a cache that another version or program filled: what is there has to do.
        files = [file for file in folder.rglob("*") if file.is_file()]
        found = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
        if not _has_weights(set(found)):
            raise
        return found


def _describe(name: HubName) -> "tuple[ResolvedRevision, Path]":
    """Return the commit and the snapshot's folder with the files that say what the model is, which are checked."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise CheckpointError(
            f"there is no folder {name} here; to download it from the Hugging Face hub, install huggingface_hub: {INSTALL}"
        )
    from huggingface_hub import is_offline_mode, resolve_revision, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    check_answers()
    if is_offline_mode():
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns that the hub was not asked
    revision = resolve_revision(name.repo, revision=name.revision or MAIN)
    folder = Path(snapshot_download(name.repo, revision=revision, allow_patterns=DESCRIPTIONS))
    _check_downloaded(name, folder, [file for file in DESCRIPTIONS if (folder / file).is_file()])
    try:
        if is_gliner(folder):
            read_config(folder)
        elif gliclass.is_gliclass(folder):
            gliclass.read_config(folder)
        elif (folder / "config.json").is_file():
            BertConfig.read(folder)
        elif (folder / ADAPTER_CONFIG).is_file():
            read_adapter_config(folder)
        elif (folder / ROUTER).is_file():
            pass  # the transformer's own config lies in a folder of its own
        else:
            raise CheckpointError("it holds no config.json, so it is not a checkpoint of a transformer")
    except (CheckpointError, ConfigError) as error:
        raise type(error)(f"{name} on the hub: {error}") from None
    return revision, folder


def _check_space(name: HubName, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents)
    place = next(each for each in folders if os.path.isdir(each))  # Path.is_dir raises where it may not look
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise CheckpointError(
            f"{name} needs {needed_bytes / 1e6:,.0f} MB in {HF_HUB_CACHE}, and {free_bytes / 1e6:,.0f} MB are free: make "
            "room, or set HF_HOME to a folder on another disk"
        )


def main(arguments: list[str]) -> int:
    """Print the commit of a name; returns 1 with a line on standard error where there is none."""
    name = HubName.parse(arguments[0])
    assert name is not None
    try:
        print(commit_of(name), flush=True)
    except BertError as error:
        print(f"bert-export: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
