"""Command line of every baseline."""

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line of a baseline."""

    folder: Path
    """The model in Hugging Face's format, `model.onnx` in it for those that use it."""
    port: int
    workers: int
    """Processes that hold the model."""
    threads: int
    """Threads of the engine in each worker."""
    mode: str


def read_arguments(*modes: str) -> Arguments:
    """Read the command line; `modes` are those that the baseline knows. What else stands there is left alone."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=modes, default=modes[0])
    found, _ = parser.parse_known_args()
    return Arguments(found.folder, found.port, found.workers, found.threads, found.mode)
