"""Signals that stop the service, and exit codes.

While a process is still importing, which takes seconds, a signal ends it at once. So this module imports nothing heavy.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end the service; Windows has no SIGHUP."""

FAILURE = 1
"""Exit code of a service that could not start."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C interrupted, as in shells."""


def exit_at_once(_: int, __: FrameType | None) -> None:
    """End the process with code 0; an exception during an import might be taken for a failed import."""
    os._exit(0)


def is_ignored(number: int) -> bool:
    """Tell whether this process was started to ignore a hang-up, as by nohup."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *more: int) -> Iterator[None]:
    """Handle STOPS, and `more` signals, within the block."""
    caught = (*more, *(number for number in STOPS if not is_ignored(number)))
    before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def exit_on_stop(code: int = 0) -> AbstractContextManager[None]:
    """End this process with an exit code if a signal of STOPS arrives within the block."""
    is_main = threading.current_thread() is threading.main_thread()
    return handled(lambda *_: os._exit(code)) if is_main else nullcontext()
