"""The numbers of every step in a file, each step once, whatever kills a run suffered."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class StepsLog:
    """`log.jsonl`: a line a step, and a line a look at held-out text. Floats are written so that they read back the same."""

    def __init__(self, file: Path, done_steps: int) -> None:
        """Open for going on after `done_steps`; what a killed run wrote past its last checkpoint goes."""
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_lines(file) if line["step"] <= done_steps]
        aside = file.with_suffix(".writing")
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(aside, file)
        self._stream = file.open("a", encoding="utf-8")

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Append one line; a kill can cut the last one, which reading passes over."""
        self._stream.write(json.dumps(dict(numbers)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log; nothing where there is none."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return  # cut by a kill: nothing after it was written
