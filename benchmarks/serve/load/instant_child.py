"""First import of each process of `instant_service`, found by its name on their path."""

from collections.abc import Sequence

from instant_service import put_in  # type: ignore[import-not-found]

from service.workers import worker_main


def main(arguments: Sequence[str]) -> int:
    """Be the engine process or a frontend; returns the exit code."""
    put_in()
    return worker_main.main(arguments)
