"""bert-serve as a process of its own."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "service.cli", "--port", "0"]


class Process:
    """A running bert-serve, its output read as it comes. `variables` are added to its environment."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        self.popen = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        # Both are read all the time: a process that writes into a full pipe stands still.
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.error_reader = threading.Thread(target=self.read_errors, daemon=True)
        self.reader.start()
        self.error_reader.start()

    def read(self) -> None:
        assert self.popen.stdout is not None
        self.lines += iter(self.popen.stdout.readline, "")

    def until(self, text: str, *, errors: bool = False) -> str:
        """Return the output, or standard error, so far, once it has a text."""
        lines = self.errors if errors else self.lines
        end = time.monotonic() + 120
        while time.monotonic() < end and not any(text in line for line in lines):
            assert self.popen.poll() is None, self.error()
            time.sleep(0.01)
        return "".join(lines)

    def read_errors(self) -> None:
        assert self.popen.stderr is not None
        self.errors.extend(self.popen.stderr)

    def error(self) -> str:
        """Return all of standard error, once the process has ended."""
        self.error_reader.join(120)
        return "".join(self.errors)


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> Iterator[Process]:
    process = Process(*arguments, command=command, **variables)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait(120)
        process.reader.join(60)
        process.error_reader.join(60)
        assert process.popen.stdout is not None and process.popen.stderr is not None
        process.popen.stdout.close()
        process.popen.stderr.close()


def address(shown: str) -> str:
    found = re.search(r"http://[\d.]+:\d+", shown)
    assert found, shown
    return found[0]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
