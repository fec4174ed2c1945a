"""Stop requests: the run saves, and ends with the exit code that a shell gives for the signal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class RunStopped(Exception):
    """The run stopped on request, after a save."""

    def __init__(self, message: str, number: int = signal.SIGTERM) -> None:
        """`message` is for people, and may be empty; `number` is the signal's."""
        super().__init__(message)
        self.exit_code = 128 + number


@contextmanager
def on_stop(ask: Callable[[int], None]) -> Iterator[None]:
    """Call `ask` with the signal at SIGTERM or Ctrl-C; a second signal ends the process at once."""
    # Python lets no other thread handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        ask(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
