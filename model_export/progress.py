"""Progress of an export on stderr: one line a step, with its seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is being done, and how long it took once it is."""
    print(f"  {what} ... ", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr, flush=True)
        raise
    print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Print a line."""
    print(line, file=sys.stderr, flush=True)
