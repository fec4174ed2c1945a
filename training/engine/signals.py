"""Stop requests, which the main process handles by a save, and child processes that leave them to it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process, resource_tracker
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


@contextmanager
def deaf_children(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in processes that are started meanwhile: a signal to the whole group is for the main process.

    Children inherit the mask. A signal that arrives meanwhile reaches this process afterwards.
    """
    # It starts with the first child otherwise, and takes the mask off once it runs.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Let this process end with its main process, which cannot end it when it is killed."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
