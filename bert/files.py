"""A folder written aside and renamed into place: no half of one is ever seen, and no whole one is ever lost.

Whether another process still writes is told by its lock on what it writes, never by its number: in containers
every process has the same one. Names beside the folder NAME: `.NAME.partial-*` is being written, `.NAME.previous`
is what NAME was until a moment ago.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder`; whatever happens, it is gone afterwards. Raises OSError.

    What killed processes left is put right first.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.partial-{secrets.token_hex(4)}")
    with _alone_in(folder.parent):
        _put_back(folder)
        _clear_left_overs(folder)
        aside.mkdir()
        held = _lock(aside)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _unlock(held)


def put_back(folder: Path) -> None:
    """Give `folder` back what a process that was killed between two renames had moved out of its place.

    Raises OSError.
    """
    if _previous(folder).exists():
        with _alone_in(folder.parent):
            _put_back(folder)


def move_into_place(aside: Path, folder: Path, *, replace_old: bool) -> None:
    """Rename `aside`, synced to the disk, to `folder`, in place of the one that may be there.

    Raises OSError; FileExistsError where one came into being meanwhile that is not to be replaced.
    """
    # A folder that is not empty cannot be renamed over: the old one steps aside first, and back if the rename fails.
    previous = _previous(folder)
    with _alone_in(folder.parent):
        had_old = folder.exists()
        if had_old and not replace_old:
            raise FileExistsError(errno.EEXIST, "another process has written it meanwhile")
        if had_old:
            folder.rename(previous)
        try:
            aside.rename(folder)
        except BaseException:
            if had_old:
                previous.rename(folder)
            raise
        sync(folder.parent)
        shutil.rmtree(previous, ignore_errors=True)


def replace_text(file: Path, text: str) -> None:
    """Replace a file at once: no reader sees half of it, and a killed process leaves the old one. Raises OSError."""
    aside = file.with_name(f".{file.name}.writing")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)


def write_synced(file: Path, content: bytes) -> None:
    """Write a new file down to the disk. Raises OSError."""
    with file.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of files, down to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _put_back(folder: Path) -> None:
    previous = _previous(folder)
    try:
        previous.rename(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise
        shutil.rmtree(previous, ignore_errors=True)  # the new one came into place: only the tidying was left


def _clear_left_overs(folder: Path) -> None:
    for left in folder.parent.glob(f".{escape(folder.name)}.partial-*"):
        held = _lock(left)
        if held is not None:  # nobody writes it any more
            shutil.rmtree(left, ignore_errors=True)
            _unlock(held)


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Wait until no other process renames in this folder."""
    held = _lock(parent, wait=True)
    try:
        yield
    finally:
        _unlock(held)


def _lock(folder: Path, *, wait: bool = False) -> int | None:
    """Lock a folder until the process ends or unlocks it; None if another has it, or this disk knows no locks."""
    import fcntl  # not on Windows, where bundles can be read all the same

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
