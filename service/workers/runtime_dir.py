"""The runtime directory that the processes of one service share, and the files in it."""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

SOCKET = "engine.sock"
"""Name of the socket on which the engine process listens."""
READY = "ready"
"""Name of a file that is there once the service has been ready."""
PLACES = "places"
"""Name of the file in which the frontends count the requests in progress of each API key."""
STOPPING = "stopping"
"""Name of a file that is there once the service stops."""
MAX_PATH_BYTES = 90
"""Largest length of its path: a Unix socket's path has at most 107 bytes, and its name needs some."""


def make_runtime_dir() -> Path:
    """Make a directory for this user only among the system's temporary files; under /tmp if their path is too long."""
    path = Path(tempfile.mkdtemp(prefix="bert-serve-"))
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        return path
    path.rmdir()
    return Path(tempfile.mkdtemp(prefix="bert-serve-", dir="/tmp"))


def restore_runtime_dir(path: Path) -> bool:
    """Make the directory again if it was removed; return whether it was.

    Raises PermissionError if a directory of somebody else has taken its place.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not is_own(path):
            raise PermissionError(
                f"{path} is not the folder that this service made: look who replaced it, and set TMPDIR to a place where "
                "nobody else can"
            ) from None
        return False
    return True


def is_own(path: Path) -> bool:
    """Tell whether this is a directory that this user owns and nobody else can open."""
    with suppress(OSError):
        found = path.lstat()
        is_private = stat.S_IMODE(found.st_mode) & 0o077 == 0
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private
    return False


def note(path: Path, name: str) -> None:
    """Make an empty file that tells the other processes something; no-op if the directory is no longer this service's."""
    with suppress(OSError):
        if is_own(path):
            (path / name).touch()


def remove_runtime_dir(path: Path) -> None:
    """Remove the directory and what is in it, unless it is no longer this service's or another process removed it."""
    if is_own(path):
        shutil.rmtree(path, ignore_errors=True)


def can_make_runtime_dir() -> bool:
    """Tell whether a runtime directory can be made; in a read-only container it may not."""
    with suppress(OSError):
        make_runtime_dir().rmdir()
        return True
    return False
