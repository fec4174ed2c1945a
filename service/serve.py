"""What `bert-serve` does with its settings: one process, or several."""

import os
import sys
import tempfile

from bert.errors import BertError, ConfigError
from service.checks import check_settings
from service.command_line import USAGE_ERROR
from service.cpu_count import usable_cores
from service.exit_signals import FAILURE
from service.http.app import create_app
from service.http.server import Server
from service.listener import address, listen
from service.settings import ServeSettings
from service.workers.open_models import open_models
from service.workers.runtime_dir import can_meet
from service.workers.supervisor import Supervisor

CORES_A_FRONTEND = 8
"""A request takes 0.4 ms of a frontend and in 8 bits 4 ms of an engine's core (docs/performance.md)."""


def serve(settings: ServeSettings) -> int:
    """Serve until a signal; returns the exit code. A failed start says what to do."""
    try:
        check_settings(settings)
    except BertError as error:
        print(f"bert-serve: {error}", file=sys.stderr)
        return USAGE_ERROR if isinstance(error, ConfigError) else FAILURE
    if settings.frontends and not can_meet():
        print(
            f"bert-serve: frontends ({settings.frontends}) need a folder to meet in, and none can be made under "
            f"{tempfile.gettempdir()}: set TMPDIR, or --frontends 0",
            file=sys.stderr,
        )
        return FAILURE
    try:
        listener = listen(settings)
    except OSError as error:
        print(
            f"bert-serve: cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "stop what uses it, or "
            f"take another with --port",
            file=sys.stderr,
        )
        return FAILURE
    url = address(listener)
    if settings.log_format == "text":
        print(f"Loading models from {', '.join(map(str, settings.bundles))}; listening on {url}", flush=True)
    if frontends_of(settings):
        return Supervisor(settings, listener, frontends_of(settings)).run()
    app = create_app(settings, open_models)
    return Server(app, app.service, url).serve_until_signal(listener)


def frontends_of(settings: ServeSettings) -> int:
    """Return how many processes speak HTTP beside the engine's, 0 for one process that does everything.

    By default one for each CORES_A_FRONTEND, where the system has what they need: POSIX, and a folder to meet in.
    """
    if settings.frontends is not None:
        return settings.frontends
    if os.name != "posix" or not can_meet():
        return 0
    return max(1, usable_cores() // CORES_A_FRONTEND)
