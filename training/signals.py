"""A polite request to stop: the run saves and ends with exit code 0."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class RunStopped(Exception):
    """The run was asked to stop; what it did is saved."""


@contextmanager
def on_stop(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` at SIGTERM or Ctrl-C; a second one takes the usual way, at once."""
    # Python lets no other thread handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        ask()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
