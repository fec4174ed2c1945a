"""What the processes of a service begin with: settings on standard input, whose end means that the parent is gone."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert.errors import BertError
from service import logs, metrics
from service.http.lifecycle import OpenEngines
from service.http.server import FAILURE, Server, address
from service.settings import ENV_PREFIX, ServeSettings
from service.workers.engine_worker import EngineServer
from service.workers.heartbeat import Beat, heartbeat
from service.workers.remote_scheduler import connect_engines

ENGINE, FRONTEND = "engine", "frontend"
ORPHANED_S = 5.0
"""For the end of a frontend whose parent is gone."""


def start_message(
    settings: ServeSettings,
    folder: Path,
    name: str,
    listener: int | None,
    heartbeat: int,
    *,
    restarts: int,
    announces: bool,
) -> bytes:
    """Return what the parent writes to a child's standard input.

    `name` is that of its metrics' files, `listener` and `heartbeat` are the inherited file descriptors of the socket and of
    the pipe for signs of life, `restarts` how many such processes have ended, `announces` whether it tells people that it is
    ready.
    """
    values = settings.model_dump(mode="json", exclude={"api_key"})
    key = settings.api_key.get_secret_value() if settings.api_key is not None else None
    start = {
        "folder": str(folder),
        "name": name,
        "listener": listener,
        "heartbeat": heartbeat,
        "restarts": restarts,
        "announces": announces,
    }
    return json.dumps({"settings": {**values, "api_key": key}, **start}).encode() + b"\n"


def main(arguments: Sequence[str]) -> int:
    """Be the engine process or a frontend; returns the exit code."""
    # What the parent was told in the environment is in the message, and what it was told elsewhere wins over that.
    for name in [name for name in os.environ if name.upper().startswith(ENV_PREFIX)]:
        del os.environ[name]
    start: dict[str, Any] = json.loads(_read_line(0))
    settings = ServeSettings(**start["settings"])
    logs.configure(settings.log_level, settings.log_format)
    metrics.name_process(start["name"])
    if arguments[-1] == ENGINE:
        return _run_engine(settings, Path(start["folder"]), start["restarts"], heartbeat(start["heartbeat"]))
    connect = partial(connect_engines, folder=Path(start["folder"]), beat=heartbeat(start["heartbeat"]))
    return _run_frontend(settings, connect, start["listener"], announces=start["announces"])


def _run_engine(settings: ServeSettings, folder: Path, restarts: int, beat: Beat) -> int:
    """Run until the frontends are done; what stops the service is the parent's to handle, and ignored here."""

    async def run() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        _when_orphaned(lambda: loop.call_soon_threadsafe(ended.set))
        await EngineServer(settings, folder, restarts, beat).run(ended)

    try:
        _runner()(run())
    except BertError as error:
        print(f"bert-serve: {error}", file=sys.stderr)
        return FAILURE
    return 0


def _run_frontend(settings: ServeSettings, connect: OpenEngines, listener: int, *, announces: bool) -> int:
    sock = socket.socket(fileno=listener)
    server = Server(settings, address(sock), open_engines=connect, announces=announces)
    # As by Ctrl-C: to go on taking requests for `drain_s` would be of no use, nobody is there to run them.
    _when_orphaned(_leave)
    server.run(sockets=[sock])
    return FAILURE if server.failed else 0


def _leave() -> None:
    """End soon, without waiting for answers that no engine will give."""
    os.kill(os.getpid(), signal.SIGINT)
    last = threading.Timer(ORPHANED_S, os._exit, (FAILURE,))
    last.daemon = True
    last.start()


def _read_line(fd: int) -> bytes:
    """Return what a file descriptor gives up to a line's end."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(fd, 65_536)):
        line += part
    return line


def _when_orphaned(then: Callable[[], object]) -> None:
    """Call this when standard input ends."""

    def wait() -> None:
        # Not sys.stdin: a thread that waits inside it at the interpreter's end is a fatal error.
        while os.read(0, 1):
            pass
        then()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Return uvloop's `run` where it is installed, asyncio's where not."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
