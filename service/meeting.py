"""The folder in which the processes of one service meet, and what lies there."""

import os
import tempfile
from pathlib import Path

SOCKET = "engine.sock"
"""Where the engine process listens."""
LEDGER = "engine.ledger"
"""What is in the engine; see `service.ledger`."""
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


def can_meet() -> bool:
    """Tell whether there is a place for such a folder: a read-only container may have none."""
    try:
        meeting_place().rmdir()
    except OSError:
        return False
    return True
