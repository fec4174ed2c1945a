"""Numbered checkpoints of a run: whole or not at all, checked by hash, damaged ones skipped.

    FOLDER/step-00000200/...   what the run wrote, and `checkpoint.json` with the sha256 of each file

A checkpoint is written aside, flushed to the disk and renamed. A kill at any moment leaves the ones before it.
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert.errors import ConfigError, TrainingError
from bert.files import atomic_dir, file_sha256

MANIFEST = "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")
logger = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints in a folder; the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """Name the folder; it is made at the first save."""
        if keep < 1:
            raise ValueError(f"keep ({keep}) must be at least 1")
        self.folder, self.keep = folder, keep

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill an empty folder, and make it the checkpoint of that step.

        Raises TrainingError where the disk is full or cannot be written; checkpoints from before stay as they are.
        """
        folder = self.folder / f"step-{step:08d}"
        with self.writing(folder):
            with atomic_dir(folder) as aside:
                write(aside)
                _seal(aside, step)
            self._prune(folder)
        return folder

    @contextmanager
    def writing(self, what: Path) -> Iterator[None]:
        """Raise TrainingError, with the checkpoint to go on from, where the disk is full or cannot be written meanwhile."""
        try:
            yield
        except Exception as error:
            if reason := unwritten_because(error):
                raise TrainingError(self._why(what, reason)) from error
            raise

    def newest(self) -> Path | None:
        """Return the newest checkpoint that is whole, or None; each damaged one gets a warning."""
        for folder in self.newest_first():
            damage = damage_of(folder)
            if damage is None:
                return folder
            logger.warning("%s is passed over: %s", folder, damage)
        return None

    def clear(self) -> None:
        """Forget all checkpoints, for a run that starts anew."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def newest_first(self) -> Iterator[Path]:
        """Return the checkpoints, damaged ones too."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        steps = {int(match[1]): path for path in found if (match := _NAME.fullmatch(path.name))}
        return (steps[step] for step in sorted(steps, reverse=True))

    def _prune(self, kept: Path) -> None:
        for old in list(self.newest_first())[self.keep :]:
            if old != kept:
                shutil.rmtree(old, ignore_errors=True)
        for left in self.folder.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _why(self, what: Path, reason: str) -> str:
        newest = next(self.newest_first(), None)
        state = f"the last good checkpoint is {newest}" if newest else "there is no earlier checkpoint"
        return (
            f"{what} could not be written: {reason}; {state}. Make room and run the same command again"
            f"{': it resumes from there' if newest else ''}"
        )


def require_writable(folder: Path, name: str = "output_dir") -> None:
    """Raise ConfigError where a run could not write a folder, given by its name, before any work; nothing is made yet."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"{name} ({folder}) must be a folder, and {place} is none")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{name} ({folder}) cannot be written: no permission to write in {place}")


def unwritten_because(error: BaseException) -> str | None:
    """Return the reason where an error says that the disk is full or cannot be written; None of any other error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # safetensors tells of a full disk in an exception of its own: "I/O error: ... (os error 28)".
    if match := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(match[1]))
    return os.strerror(errno.ENOSPC) if "StorageFull" in str(error) else None


def damage_of(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint folder, or None where every file is as it was written."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, sha256 in files.items():
            if file_sha256(folder / name) != sha256:
                return f"{name} is not what was written (its sha256 differs)"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"it is not whole ({error!r})"
    return None


def check_same_run(folder: Path, saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise TrainingError where settings that a run cannot change are others than those of its checkpoint."""
    changed = [name for name in given if saved.get(name) != given[name]]
    if changed:
        raise TrainingError(
            f"{folder} is of a run with other settings ({', '.join(changed)}); "
            "give another output_dir, or --no-resume to start anew"
        )


def _seal(folder: Path, step: int) -> None:
    """Write the hashes beside the files."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1), encoding="utf-8")
