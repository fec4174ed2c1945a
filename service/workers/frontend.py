"""A frontend: a process that speaks HTTP and sends its requests to the engine process."""

import os
import signal
import socket
import threading
from functools import partial

from service.http.app import create_app
from service.http.server import Server
from service.listener import address
from service.system import FAILURE
from service.workers.heartbeat import Beat, unread_s
from service.workers.remote_scheduler import connect_models
from service.workers.runtime_dir import PLACES, READY, STOPPING, note
from service.workers.start import StartMessage, when_orphaned

ORPHANED_S = 5.0
"""Seconds given to a frontend to end after its parent is gone."""


def run_frontend(start: StartMessage, beat: Beat) -> int:
    """Run until a signal."""
    runtime_dir = start.runtime_dir
    app = create_app(start.settings, partial(connect_models, runtime_dir=runtime_dir, beat=beat))
    app.places = runtime_dir / PLACES
    app.service.metrics.count_restarts("frontend", start.restarts)
    app.service.is_successor = start.is_successor
    app.service.parent_silent_s = partial(unread_s, start.heartbeat)
    listeners = [socket.socket(fileno=listener) for listener in start.listeners]
    server = Server(
        app,
        app.service,
        address(listeners[0], is_tls=start.settings.ssl_certfile is not None),
        announces=start.announces,
        others_accept=lambda: not (runtime_dir / STOPPING).exists(),
    )
    announce = app.service.on_ready

    def ready() -> None:
        note(runtime_dir, READY)
        announce()

    app.service.on_ready = ready
    # As by Ctrl-C: requests taken during `drain_s` would find no engine.
    when_orphaned(_leave, runtime_dir)
    return server.serve_until_signal(listeners)


def _leave() -> None:
    """End soon, without waiting for responses that no engine will give."""
    os.kill(os.getpid(), signal.SIGINT)
    last = threading.Timer(ORPHANED_S, os._exit, (FAILURE,))
    last.daemon = True
    last.start()
