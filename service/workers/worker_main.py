"""Entry point of the engine process and the frontends.

Settings come on standard input, whose end means that the parent is gone.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bert.errors import BertError
from service import logs, metrics
from service.exit_signals import FAILURE
from service.http.app import create_app
from service.http.server import Server
from service.listener import address
from service.settings import ENV_PREFIX, ServeSettings
from service.workers.engine_worker import EngineWorker
from service.workers.heartbeat import Beat, heartbeat, unread_s
from service.workers.remote_scheduler import connect_models
from service.workers.runtime_dir import READY, STOPPING, note, remove_runtime_dir
from service.workers.supervisor import ENGINE, StartMessage

ORPHANED_S = 5.0
"""Seconds given to a frontend to end after its parent is gone."""


def main(arguments: Sequence[str]) -> int:
    """Run the engine process or a frontend; return the exit code."""
    # The message has the final settings; the environment must not override those from elsewhere.
    for name in [name for name in os.environ if name.upper().startswith(ENV_PREFIX)]:
        del os.environ[name]
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        start = StartMessage.from_line(stdin.readline())
    settings, runtime_dir, beat = start.settings, Path(start.runtime_dir), heartbeat(start.heartbeat)
    logs.configure(settings.log_level, settings.log_format)
    metrics.name_process(start.name)
    if arguments[-1] == ENGINE:
        return _run_engine(settings, runtime_dir, start.restarts, beat)
    return _run_frontend(start, runtime_dir, beat)


def _run_frontend(start: StartMessage, runtime_dir: Path, beat: Beat) -> int:
    """Run until a signal."""
    app = create_app(start.settings, partial(connect_models, runtime_dir=runtime_dir, beat=beat))
    app.service.is_successor = start.is_successor
    app.service.parent_silent_s = partial(unread_s, start.heartbeat)
    sock = socket.socket(fileno=start.listener)
    server = Server(
        app,
        app.service,
        address(sock),
        announces=start.announces,
        others_accept=lambda: not (runtime_dir / STOPPING).exists(),
    )
    announce = app.service.on_ready

    def ready() -> None:
        note(runtime_dir, READY)
        announce()

    app.service.on_ready = ready
    # As by Ctrl-C: requests taken during `drain_s` would find no engine.
    _when_orphaned(_leave, runtime_dir)
    return server.serve_until_signal(sock)


def _run_engine(settings: ServeSettings, runtime_dir: Path, restarts: int, beat: Beat) -> int:
    """Run until the frontends are done; the parent handles the signals that stop the service."""

    async def run() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        _when_orphaned(lambda: loop.call_soon_threadsafe(ended.set), runtime_dir)
        await EngineWorker(settings, runtime_dir, restarts, beat).run(ended)

    loop_module = import_module("uvloop" if find_spec("uvloop") else "asyncio")
    try:
        loop_module.run(run())
    except BertError as error:
        print(f"bert-serve: {error}", file=sys.stderr)
        return FAILURE
    return 0


def _leave() -> None:
    """End soon, without waiting for responses that no engine will give."""
    os.kill(os.getpid(), signal.SIGINT)
    last = threading.Timer(ORPHANED_S, os._exit, (FAILURE,))
    last.daemon = True
    last.start()


def _when_orphaned(then: Callable[[], object], runtime_dir: Path) -> None:
    """When standard input ends, call `then`, and first remove the runtime directory if the parent can no longer do so."""

    def wait() -> None:
        # Not sys.stdin: a thread that still waits in it when the interpreter ends is a fatal error.
        while os.read(0, 1):
            pass
        if not (runtime_dir / STOPPING).exists():  # else the parent lives, and removes it at the end
            remove_runtime_dir(runtime_dir)
        then()

    threading.Thread(target=wait, name="parent", daemon=True).start()
