"""Content of a prepared folder: runs that continue in it must agree on it, and one works there at a time."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from training.corpus.settings import PrepareSettings
from training.corpus.shards import write_json
from training.corpus.text_files import TextFile
from training.corpus.worker import LOG_FOLDER


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make an output folder and lock it. Raises ConfigError where another run holds the lock."""
    (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOG_FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process ends
        yield
    except BlockingIOError:
        raise ConfigError(f"another bert-prepare is at work in {folder}") from None
    finally:
        os.close(handle)


def make_plan(settings: PrepareSettings, files: tuple[TextFile, ...]) -> dict[str, Any]:
    """Return everything that decides the content of the shards; the number of processes does not."""
    free = {"config", "output_dir", "processes", "sources", "vocab_only", "tokenizer", "on_error"}
    of_training = {"vocab_size", "uncased", "vocab_share", "model_type"}
    plan = settings.model_dump(mode="json", exclude=free | of_training)
    if settings.tokenizer is None:
        plan |= {"vocab_size": settings.pieces, "uncased": settings.lowercases}
        plan |= {"vocab_share": settings.vocab_share, "model_type": settings.model_type}
    plan["tokenizer"] = _tokenizer_sha256(settings.tokenizer)
    plan["sources"] = [_source(file) for file in files]
    return plan


def _source(file: TextFile) -> dict[str, Any]:
    """Return what distinguishes a file from others; a data set of the hub has no size."""
    source = {"path": file.path, "bytes": file.size, "column": file.column}
    if file.format == "hub":
        source |= {"split": file.hub_split, "config": file.hub_config, "revision": file.hub_revision}
    return source


def keep_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan in the first run, compare it in later ones. Raises ConfigError where they differ."""
    file = folder / LOG_FOLDER / "plan.json"
    if not file.is_file():
        write_json(file, plan)
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    for key in sorted({*plan, *begun}):
        if plan.get(key) != begun.get(key):
            raise ConfigError(
                f"{folder} was begun with {key} {_short(begun.get(key))} and is now given {_short(plan.get(key))}: "
                "take another output_dir, or remove this one"
            )


def _tokenizer_sha256(path: Path | None) -> str | None:
    """Hash a tokenizer as this project saves it, whatever its file; None where one will be trained."""
    if path is None:
        return None
    return hashlib.sha256(Tokenizer.load(path).to_json().encode()).hexdigest()


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + " ..."
