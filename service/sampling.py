"""Opt-in samples: texts and results of some requests in rotating JSON lines, a file for each model.

A line has the form in which `bert-finetune` reads the task, with what the model answered as its label. After people have
corrected the labels, the files are training data.
"""

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from urllib.parse import quote

import orjson

from service.logs import LOGGER
from service.pipeline.inputs import Rows

MAX_FILE_BYTES = 2**26
"""Size past which a file becomes NAME.old.jsonl, in place of the one before."""
MAX_WAITING = 100
"""Sampled requests that wait to be written; further ones are not sampled."""
END_S = 1.0
"""Longest wait for the disk when the service ends."""


class Sampler:
    """Chooses requests, and writes them in a thread of its own: a disk may be slow."""

    def __init__(self, share: float, folder: Path) -> None:
        """Make the folder, which only this user may read. Raises OSError if it cannot be made."""
        self._share, self._folder = share, folder
        self._waiting: Queue[tuple[str, Mapping[str, object], Rows] | None] = Queue(MAX_WAITING)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread = Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def chosen(self) -> bool:
        """Tell whether a request is one of the sampled."""
        return random.random() < self._share

    def take(self, model: str, about: Mapping[str, object], rows: Rows) -> None:
        """Write the rows of a request, each with what is said about it; leave them out if too many wait.

        `rows` is called in the thread that writes.
        """
        try:
            self._waiting.put_nowait((model, {"time": round(time.time(), 3), **about}, rows))
        except Full:
            return

    def close(self) -> None:
        """Write what waits, as far as the disk does in END_S."""
        try:
            self._waiting.put_nowait(None)
        except Full:
            return
        self._thread.join(END_S)

    def _run(self) -> None:
        told = False
        while (taken := self._waiting.get()) is not None:
            model, about, rows = taken
            try:
                self._write(model, b"".join(orjson.dumps({**row, **about}) + b"\n" for row in rows()))
                told = False
            except Exception as error:
                if not told:  # a full disk stays full
                    LOGGER.error("samples cannot be written to %s: %s", self._folder, error)
                told = True

    def _write(self, model: str, lines: bytes) -> None:
        path = self._folder / f"{quote(model, safe='')}.jsonl"
        with _alone(self._folder):
            if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
                path.replace(path.with_suffix(".old.jsonl"))
            with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(lines)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep the service's other processes from rotating meanwhile."""
    try:
        import fcntl
    except ImportError:  # Windows, where there is one process only
        yield
        return
    with open(folder / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
