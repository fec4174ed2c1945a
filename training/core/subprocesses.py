"""Processes that this one starts: they do not hear its signals, and they end when it ends."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process, resource_tracker


@contextmanager
def deaf_children(*numbers: signal.Signals) -> Iterator[None]:
    """Keep signals from processes that are started meanwhile: what reaches a whole group, the main one answers.

    A mask is inherited, and what comes meanwhile is not lost: this process gets it afterwards.
    """
    # It starts with the first child otherwise, and takes the mask off once it runs.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Let this process end when its main process does; killed, that one could not say that there is no more work."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
