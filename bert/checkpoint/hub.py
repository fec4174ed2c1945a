"""Checkpoints of the Hugging Face hub, downloaded by huggingface_hub into its cache.

Cache, token, address and offline mode are those of huggingface_hub: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Only
export and training import this module. `python -m bert.checkpoint.hub NAME` prints the commit that a name stands for.
"""

import errno
import importlib.util
import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bert.checkpoint.cached_files import check_whole, damaged_files
from bert.checkpoint.download_progress import downloading
from bert.checkpoint.hub_answers import check_answers, no_hub
from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_PICKLED, ADAPTER_WEIGHTS, read_adapter_config
from bert.checkpoint.weight_files import PICKLED, PICKLED_INDEX, WEIGHTS, WEIGHTS_INDEX
from bert.config import BertConfig
from bert.errors import BertError, CheckpointError, ConfigError
from bert.hub_name import HubName

if TYPE_CHECKING:
    from huggingface_hub import ResolvedRevision

INSTALL = 'pip install "bert-train-serve[export]"'
DESCRIPTIONS = ["config.json", ADAPTER_CONFIG]
"""Files that are downloaded and checked before any other."""
_TEXTS = frozenset(
    (
        *DESCRIPTIONS, "task.json",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.txt", "vocab.json", "merges.txt",
        "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model",
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    )
)  # fmt: skip
_MODULE_CONFIG = re.compile(r"\d+_\w+/config\.json")
_DENSE = re.compile(r"(\d+_Dense/)[^/]+")
_SHARD = re.compile(r"(?:pytorch_)?model-\d+-of-\d+\.(?:safetensors|bin)")
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAIN = "main"
SPARE_BYTES = 64 << 20
"""Bytes that must stay free on the disk beyond a download."""


@lru_cache
def download(name: HubName) -> Path:
    """Return the folder of a model's files in the cache; those that are missing are downloaded first.

    The main branch and tags are looked up once a process. Raises CheckpointError with what to do about it, and the errors
    of `BertConfig` and of adapters for a model that is not read, before its weights are downloaded.
    """
    with _explained(name):
        return _download(name)


def commit_of(name: HubName) -> str:
    """Return the commit that a name stands for now, after a look at its config. Raises as `download` does."""
    with _explained(name):
        return _describe(name)[0].resolved


def wanted_files(listed: list[str]) -> list[str]:
    """Return the files of a model that are read: never code, and pickled weights only where there are no others."""
    names = set(listed)
    wanted = {name for name in names if name in _TEXTS or _MODULE_CONFIG.fullmatch(name)}
    dense = {found[1] for name in names if (found := _DENSE.fullmatch(name))}
    for folder in ("", *dense):
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


def _download(name: HubName) -> Path:
    from huggingface_hub import hf_hub_download

    revision, folder = _describe(name)
    sizes = _sizes(name, revision, folder)
    if not (_weights("", set(sizes)) or _adapter(sizes)):
        raise CheckpointError(
            f"{name} on the hub holds neither {WEIGHTS} nor {PICKLED}: take the repository of the original weights"
        )
    missing = [file for file in wanted_files(list(sizes)) if not (folder / file).is_file()]
    if missing:
        total_bytes = sum(sizes[file] for file in missing)
        _check_space(name, total_bytes)
        with downloading(str(name), total_bytes) as progress:
            for file in missing:  # in this thread, so that Ctrl-C ends it at once
                hf_hub_download(name.repo, file, revision=revision, tqdm_class=progress)
            _check_downloaded(name, folder, missing)
    check_whole(folder, [file for file in wanted_files(list(sizes)) if file not in missing])
    return folder


def _check_downloaded(name: HubName, folder: Path, files: Collection[str]) -> None:
    """Delete files whose content is not what the hub lists, so that another run downloads them again."""
    if not (damaged := damaged_files(folder, files)):
        return
    for file in damaged:
        (folder / file).resolve().unlink()
        (folder / file).unlink(missing_ok=True)
    raise CheckpointError(
        f"{', '.join(damaged)} of {name} came with other content than {_endpoint()} lists, and was deleted: run it again; "
        "if it stays so, check HF_ENDPOINT and proxies"
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
        if not (_weights("", set(found)) or _adapter(found)):
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
        if (folder / "config.json").is_file():
            BertConfig.read(folder)
        elif (folder / ADAPTER_CONFIG).is_file():
            read_adapter_config(folder)
        else:
            raise CheckpointError("it holds no config.json, so it is no checkpoint of a transformer")
    except (CheckpointError, ConfigError) as error:
        raise type(error)(f"{name} on the hub: {error}") from None
    return revision, folder


def _check_space(name: HubName, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = next(folder for folder in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if folder.is_dir())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise CheckpointError(
            f"{name} needs {needed_bytes / 1e6:,.0f} MB in {HF_HUB_CACHE}, and {free_bytes / 1e6:,.0f} MB are free: make "
            "room, or set HF_HOME to a folder on another disk"
        )


@contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """Turn every failure of a download into a CheckpointError that says what to do."""
    try:
        yield
    except BertError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(_reason(name, error)) from error
    except Exception as error:
        # huggingface_hub and its HTTP client have errors with no base of their own.
        if type(error).__module__.partition(".")[0] not in ("huggingface_hub", "httpx2", "httpcore2"):
            raise
        raise CheckpointError(_reason(name, error)) from error


def _reason(name: HubName, error: Exception) -> str:
    from httpx2 import TooManyRedirects
    from huggingface_hub import errors

    explanations: list[tuple[type[Exception], Callable[[HubName, Any], str]]] = [
        (errors.GatedRepoError, _gated),
        (errors.RepositoryNotFoundError, _unknown),
        (errors.RevisionNotFoundError, _no_revision),
        (errors.RemoteEntryNotFoundError, _no_file),
        (errors.RevisionResolutionError, _unreachable),
        (errors.LocalEntryNotFoundError, _unreachable),
        (json.JSONDecodeError, _no_hub),
        (TooManyRedirects, _no_hub),
        (errors.CachedRepoTreeNotFoundError, _unreachable),
        (errors.HFValidationError, lambda name, error: f"{name} is no name that the hub could have: {error}"),
        (errors.HfHubHTTPError, _status),
    ]
    for kind, explain in explanations:
        if isinstance(error, kind):
            return explain(name, error)
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        return (
            f"{name} cannot be downloaded: {error.strerror}; make room, or set HF_HOME to a folder on another disk, and "
            "run it again (whole files are kept)"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} cannot be downloaded: {error}"
    return (
        f"the download of {name} was cut off ({_short(error)}): run it again; whole files are kept, and the one that was "
        "cut off begins anew"
    )


def _gated(name: HubName, error: Any) -> str:
    return (
        f"{name} is gated: accept its terms at {_endpoint()}/{name.repo}, and set HF_TOKEN to a token of the account "
        f"that did{_token_state()}"
    )


def _unknown(name: HubName, error: Any) -> str:
    return (
        f"there is no folder {name} here, and no model {name.repo} at {_endpoint()}: correct the name; for a private model "
        f"set HF_TOKEN to a token of an account that may read it{_token_state()}"
    )


def _no_revision(name: HubName, error: Any) -> str:
    return f"{name.repo} has no revision {name.revision!r}: name a commit, a tag or a branch that {_endpoint()} lists"


def _unreachable(name: HubName, error: Any) -> str:
    from huggingface_hub import errors
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    cause = error.__cause__ or error
    if isinstance(cause, errors.FileMetadataError):
        return _no_hub(name, cause)
    if isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code < 500:
        return _status(name, cause)
    where = f"{name} is not (or not whole) in the cache {HF_HUB_CACHE}"
    if HF_HUB_OFFLINE:
        return f"{where}, and HF_HUB_OFFLINE is set: download it once without that, or name a folder that is here"
    return f"{where}, and {_endpoint()} does not answer ({_short(cause)}): check the network, a proxy, HF_ENDPOINT"


def _no_file(name: HubName, error: Any) -> str:
    path = urlsplit(str(error.response.url)).path
    return f"{_endpoint()} lists a file of {name} that it does not have ({path}): a mirror may not be whole"


def _no_hub(name: HubName, error: Any) -> str:
    return no_hub(f"answer of a hub ({_short(error)})")


def _status(name: HubName, error: Any) -> str:
    status = error.response.status_code
    if status in (401, 403):
        advice = (
            f"set HF_TOKEN to a token of an account that may read it{_token_state()}, or check HF_ENDPOINT"
        )
    elif status == 429 or status >= 500:
        advice = "try again later"
    else:
        advice = "check HF_ENDPOINT"
    return f"{_endpoint()} refuses {name} ({_short(error)}): {advice}"


def _token_state() -> str:
    from huggingface_hub import get_token

    return " (the token in use was refused)" if get_token() else " (none is set)"


def _endpoint() -> str:
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT


def _short(error: BaseException) -> str:
    """Return an error's first line, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


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
