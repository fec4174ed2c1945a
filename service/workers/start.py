"""What a process of the service gets from its parent: a message on its standard input, whose end means the parent's."""

import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from service.engine.bundle_folders import FoundBundles
from service.settings import ServeSettings
from service.workers.runtime_dir import STOPPING, remove_runtime_dir

ENGINE, FRONTEND = "engine", "frontend"
"""Kinds of processes."""


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Settings and the parameters of one process."""

    settings: ServeSettings
    """Settings of the service, the API key included."""
    found: FoundBundles
    """Bundles that the service found when it started."""
    runtime_dir: Path
    name: str
    """Name of the process in the files of its metrics."""
    listeners: list[int]
    """Inherited file descriptors of the listening sockets, for a frontend."""
    heartbeat: int
    """Inherited file descriptor of the heartbeat pipe."""
    restarts: int
    """Number of such processes that have ended."""
    announces: bool
    """The process prints that the service is ready."""
    is_successor: bool
    """The service was ready before this process started."""

    def write(self, stream: BinaryIO) -> None:
        """Write the message to a child's standard input."""
        stream.write(pickle.dumps(self))
        stream.flush()

    @classmethod
    def read(cls, stream: BinaryIO) -> Self:
        """Read what the parent wrote."""
        message = pickle.load(stream)
        assert isinstance(message, cls)
        return message


def when_orphaned(then: Callable[[], object], runtime_dir: Path) -> None:
    """When standard input ends, call `then`, and first remove the runtime directory if the parent can no longer do so."""

    def wait() -> None:
        # Not sys.stdin: a thread that still waits in it when the interpreter ends is a fatal error.
        while os.read(0, 1):
            pass
        if not (runtime_dir / STOPPING).exists():  # else the parent lives, and removes it at the end
            remove_runtime_dir(runtime_dir)
        then()

    threading.Thread(target=wait, name="parent", daemon=True).start()
