"""Child processes that ignore signals meant for the main process, and end when it ends."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process, resource_tracker


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
