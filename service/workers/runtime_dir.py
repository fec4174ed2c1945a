"""The folder in which the processes of one service meet, and what lies there."""

import os
import stat
import tempfile
from pathlib import Path

SOCKET = "engine.sock"
"""Where the engine process listens."""
RESTARTS = "engine.restarts"
"""How many an engine process has counted."""
LONGEST_FOLDER_BYTES = 90
"""Of the 107 of a socket's path; the rest is for its name."""


def meeting_place() -> Path:
    """Make a folder that only this user can open, where the system's temporary files are.

    Under /tmp where those lie too deep: a Unix socket's path has at most 107 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="bert-serve-"))
    if len(os.fsencode(folder)) <= LONGEST_FOLDER_BYTES:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="bert-serve-", dir="/tmp"))


def make_again(folder: Path) -> bool:
    """Make the folder if it was removed, and tell so; raises PermissionError if another one is in its place."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if is_own(folder):
            return False
        raise PermissionError(
            f"{folder} is not the folder that this service made: look who replaced it, and set TMPDIR to a place where "
            "nobody else can"
        ) from None
    return True


def is_own(folder: Path) -> bool:
    """Tell whether this is a folder of this user's, and nobody else can open it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private


def can_meet() -> bool:
    """Tell whether there is a place for such a folder: a read-only container may have none."""
    try:
        meeting_place().rmdir()
    except OSError:
        return False
    return True
