"""Reads of regular files only, JSON and hashes among them, and atomic writes.

A file or folder is written aside and renamed into place, so that readers see the old or the new one. Names beside a folder
NAME: `.NAME.partial-*` is being written, `.NAME.previous` is the old one between two renames. A lock on a partial folder
shows that its writer is alive; process numbers would not: containers number their processes alike.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from bert.errors import CheckpointError

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
# Opening a pipe waits for its writer without the first, where there is one; Windows needs the second.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


MAX_TEXT_BYTES, MAX_FILE_BYTES = 1 << 28, 1 << 36
"""Largest file of text or JSON, and of weights, that is read. The hub's longest tokenizer.json has 2**25 bytes."""


def open_regular(file: Path, max_bytes: int = MAX_FILE_BYTES) -> BufferedReader:
    """Open a file to read. Raises OSError for one of over `max_bytes`, and for a pipe or device, which might never end."""
    descriptor = os.open(file, os.O_RDONLY | _NO_WAIT)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    raise OSError(
        errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {max_bytes:,} are read", str(file)
    )


def read_regular(file: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return a file's content. Raises OSError as `open_regular` does, and where it does not fit into the memory."""
    with open_regular(file, max_bytes) as stream:
        try:
            return stream.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, "it does not fit into the memory", str(file)) from None


def file_sha256(file: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the hash of a file's content, read in parts. Raises OSError as `open_regular` does."""
    with open_regular(file, max_bytes) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(file: Path) -> Any:
    """Return the content of a checkpoint's JSON file.

    Raises FileNotFoundError where there is none, CheckpointError, which names the file, where it is damaged.
    """
    try:
        return json.loads(read_regular(file))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None


def read_object(file: Path, needed: str = "") -> dict[str, Any]:
    """Return the object in a JSON file, {} where there is no file.

    Raises CheckpointError for anything but an object, and where there is no file that is `needed`, with this reason.
    """
    try:
        content = read_json(file)
    except FileNotFoundError:
        if needed:
            raise CheckpointError(f"{file} is missing: {needed}") from None
        return {}
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds {type(content).__name__}, not an object")
    return content


def read_for_checkpoint(file: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a checkpoint's file. Raises CheckpointError where `read_regular` raises OSError."""
    try:
        return read_regular(file, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None


def absence(file: Path) -> str:
    """Return in words why `is_file` is false."""
    if not os.path.lexists(file):
        return "is missing"
    return "is not a regular file" if file.exists() else "is a link to nothing"


def atomic_write(file: Path, content: bytes | str) -> None:
    """Replace a file's whole content, also after a power cut. Raises OSError."""
    with atomic_file(file) as stream:
        stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))


@contextmanager
def atomic_file(file: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `file` when the block ends, and goes if it raises. Raises OSError."""
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with aside.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def atomic_dir(folder: Path, *, replace_old: bool = True) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `folder` when the block ends, and goes if it raises.

    Whoever may read the folder may read its files. Raises OSError; FileExistsError where another process made `folder`
    meanwhile and it is not to be replaced.
    """
    with _written_aside(folder) as aside:
        yield aside
        readers = aside.stat().st_mode & 0o444
        for path in aside.rglob("*"):
            # safetensors makes its files for their owner only, whatever the umask.
            path.chmod(path.stat().st_mode | readers)
            sync(path)
        sync(aside)
        _move_into_place(aside, folder, replace_old=replace_old)


@contextmanager
def _written_aside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder`, removed when the block ends. Raises OSError.

    Leftovers of killed processes are cleared first.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.partial-{secrets.token_hex(4)}")
    with alone_in(folder.parent):
        _put_back(folder)
        clear_left_overs(folder.parent.glob(f".{escape(folder.name)}.partial-*"))
        aside.mkdir()
        held = _lock(aside)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _unlock(held)


def put_back(folder: Path) -> None:
    """Restore `folder` where a process was killed between two renames. Raises OSError."""
    if _previous(folder).exists():
        with alone_in(folder.parent):
            _put_back(folder)


def _move_into_place(aside: Path, folder: Path, *, replace_old: bool) -> None:
    """Rename `aside`, synced to the disk, to `folder`. Raises OSError; FileExistsError unless `replace_old`."""
    # A folder that is not empty cannot be renamed over: the old one steps aside first, and back if the rename fails.
    previous = _previous(folder)
    with alone_in(folder.parent):
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


def sync(path: Path) -> None:
    """Write a file's content, or a folder's list of files, to the disk. Raises OSError."""
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


def clear_left_overs(partial: Iterable[Path], changed_before: float = math.inf) -> None:
    """Remove those of the partial folders that nobody writes any more; the time is that of `time.time`."""
    for left in partial:
        with suppress(OSError):  # another process removes it
            held = _lock(left) if left.stat().st_mtime < changed_before else None
            if held is not None:
                shutil.rmtree(left, ignore_errors=True)
                _unlock(held)


@contextmanager
def alone_in(parent: Path) -> Iterator[None]:
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
