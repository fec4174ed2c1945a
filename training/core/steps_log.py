"""The numbers of every step in a file, each step once, however often the run was killed."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class StepsLog:
    """`log.jsonl`: a line for each step, evaluation and warning. Floats read back as they were written."""

    def __init__(self, file: Path, done_steps: int, *, evaluation_due: bool = False) -> None:
        """Open the log of a run that resumes after `done_steps`; drop what it will write again.

        `evaluation_due`: the evaluation of the last step done is repeated too.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        last = done_steps if evaluation_due else done_steps + 1
        kept = [line for line in read_lines(file) if line["step"] < last or _stays(line, done_steps)]
        aside = file.with_suffix(".writing")
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(aside, file)
        self._stream = file.open("a", encoding="utf-8")

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Append one line; a kill can cut the last one, which reading skips."""
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


def read_steps(file: Path) -> list[dict[str, Any]]:
    """Return the numbers of each step in a log."""
    return [line for line in read_lines(file) if _is_step(line)]


def _stays(line: Mapping[str, Any], done_steps: int) -> bool:
    return line["step"] == done_steps and (_is_step(line) or "warning" in line)


def _is_step(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("loss"), float)  # under the name of a held-out file there are scores
