"""bert-serve whose engine ends its process, or never ends, on texts of some lengths. Run it as a module.

`python -m tests.support.crashing_child SETTINGS` is bert-serve; its processes run this `main` and not worker_main's.
"""

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bert.errors import ServiceError
from bert.settings import read_settings
from bert.tokenizer import Encoding
from service.engine.bundle_folders import find_bundles
from service.engine.models import Model, Outputs
from service.engine.onnx_engine import OnnxEngine
from service.listener import address, listen
from service.settings import ServeSettings
from service.workers import supervisor, worker_main
from service.workers.messages import Hello
from service.workers.supervisor import Supervisor

ABORT, SLOW, HANG = 11, 13, 14
"""Tokens of the texts that end the process, that take until RELEASED is there, and that take forever."""
RELEASED = "released"
"""File in the folder of temporary files that ends the slow batches."""
HANG_LOADING = "HANG_LOADING"
"""Variable of the environment with which no model is ever loaded."""
KILLED_LOADING = "KILLED_LOADING"
"""Variable of the environment with which a process that loads models takes so many bytes and, if it may, is then killed."""
FAIL_CONNECTING = "FAIL_CONNECTING"
"""Variable of the environment with which a frontend that has found the engine fails."""
HANG_STARTING = "HANG_STARTING"
"""Variable of the environment with which no process gives a first sign of life; it has so many seconds for that."""


def main(arguments: Sequence[str]) -> int:
    """Be a process of the service."""
    if HANG_STARTING in os.environ:
        sys.stdin.read()  # until the parent is gone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run = OnnxEngine.run

    def crashing_run(self: OnnxEngine, encodings: Sequence[Encoding]) -> Outputs:
        lengths = {len(encoding) for encoding in encodings}
        if ABORT in lengths:
            os.abort()
        if SLOW in lengths:
            while not Path(tempfile.gettempdir(), RELEASED).exists():
                time.sleep(0.02)
        if HANG in lengths:
            time.sleep(3600)
        return run(self, encodings)

    def hanging_init(*_: object, **__: object) -> None:
        time.sleep(3600)

    def killed_init(*_: object, **__: object) -> None:
        held = bytearray(b"x") * int(os.environ[KILLED_LOADING])
        os.kill(os.getpid(), signal.SIGKILL)
        del held

    def failing_models(self: Hello, known: object = ()) -> list[Model]:
        raise ServiceError("the models cannot be had")

    OnnxEngine.run = crashing_run  # type: ignore[method-assign]
    if HANG_LOADING in os.environ:
        OnnxEngine.__init__ = hanging_init  # type: ignore[method-assign]
    if KILLED_LOADING in os.environ:
        OnnxEngine.__init__ = killed_init  # type: ignore[method-assign]
    if FAIL_CONNECTING in os.environ:
        Hello.models = failing_models  # type: ignore[method-assign]
    return worker_main.main(arguments)


def serve() -> int:
    """Be the supervisor."""
    settings = read_settings(ServeSettings, sys.argv[1:])
    settings, listeners = listen(settings)
    print(f"listening on {address(listeners[0])}", flush=True)
    assert settings.frontends is not None
    if (limit_s := os.environ.get(HANG_STARTING)) is not None:
        supervisor.LOADING_HUNG_S = float(limit_s)  # type: ignore[attr-defined]
    found, entry = find_bundles(settings.bundles), "tests.support.crashing_child"
    return Supervisor(settings, found, listeners, settings.frontends, entry).run()


if __name__ == "__main__":
    sys.exit(serve())
