"""Command line of every baseline."""

import argparse
from pathlib import Path


def read_arguments(*modes: str) -> argparse.Namespace:
    """Read the command line; `modes` are those that the baseline knows. What else stands there is left alone."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add(
        "--folder",
        type=Path,
        required=True,
        help="model in Hugging Face's format, with model.onnx where it is used",
    )
    add("--port", type=int, required=True)
    add("--workers", type=int, default=1, help="processes that hold the model")
    add("--threads", type=int, default=1, help="threads of the engine in each worker")
    add("--mode", choices=modes, default=modes[0])
    return parser.parse_known_args()[0]
