"""`bert-serve`: read the settings, serve until a signal.

What takes long to import is imported inside functions: --help and wrong settings need none of it, and a signal during the
imports ends the process with exit code 0.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.system import (
    FAILURE,
    INTERRUPTED,
    allow_open_files,
    exit_on_stop,
    handled,
    on_hang_up,
    usable_cores,
)
from service.workers.runtime_dir import can_make_runtime_dir

if TYPE_CHECKING:
    from socket import socket

    from service.engine.bundle_folders import FoundBundles
    from service.exports.better_exports import Serving
    from service.settings import ServeSettings

SAGEMAKER_PORT, SAGEMAKER_MODEL = 8080, Path("/opt/ml/model")
CORES_PER_FRONTEND = 8
"""A request takes 0.4 ms in a frontend and, in int8, 4 ms on a core of the engine (docs/performance.md)."""

OTHER_FILES = 100
"""Files that a process has open besides its `max_connections`: about 30, and connections of probes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 after a signal, 1 if the service could not start, 2 for invalid settings."""
    with exit_on_stop():
        on_hang_up(lambda: None)  # the bundles are still to be read
        return _run(sys.argv[1:] if arguments is None else arguments)


def _run(arguments: Sequence[str]) -> int:
    from bert.errors import BertError, ConfigError
    from bert.settings import USAGE_ERROR, SettingsError, read_command
    from service import logs
    from service.settings import ServeSettings, unknown_variables

    switches = {
        "tune": "Measure the models on this machine, print it, and end.",
        "plan": "Print how many replicas a load needs, and end; `--plan --help` lists its settings.",
    }
    kind: type[ServeSettings] = ServeSettings
    if "--plan" in arguments:
        from service.planning.settings import PlanSettings

        kind, switches["json"] = PlanSettings, "Print the plan as JSON."
    try:
        is_sagemaker = list(arguments[:1]) == ["serve"]  # what SageMaker runs an image with
        settings, on = read_command(kind, arguments[is_sagemaker:], switches=switches, version=_versions())
        settings = with_cloud_defaults(settings, os.environ, is_sagemaker=is_sagemaker)
        logs.configure(settings.log_level, settings.log_format)
        for name in unknown_variables(os.environ):
            logs.LOGGER.warning("%s is not a setting and has no effect; `bert-serve --help` lists them", name)
        if "plan" in on:
            return _plan(settings, as_json="json" in on)
        return _tune(settings) if "tune" in on else serve(settings)
    except SettingsError as error:
        print(error.report(), file=sys.stderr)
        return USAGE_ERROR
    except BertError as error:
        logs.report_fatal("bert-serve", error)
        return USAGE_ERROR if isinstance(error, ConfigError) else FAILURE


def with_cloud_defaults(
    settings: "ServeSettings", environ: Mapping[str, str], *, is_sagemaker: bool
) -> "ServeSettings":
    """Return the settings with address, port and bundles as SageMaker and Vertex AI have them, where none were given.

    Vertex AI gives the port in AIP_HTTP_PORT; SageMaker sends requests to port 8080 and puts the model into /opt/ml/model.
    """
    port = environ.get("AIP_HTTP_PORT", "")
    defaults: dict[str, object] = {}
    if port.isdigit() or is_sagemaker:
        defaults = {"host": "0.0.0.0", "port": int(port) if port.isdigit() else SAGEMAKER_PORT}
    if is_sagemaker and SAGEMAKER_MODEL.is_dir() and "model" not in settings.model_fields_set:
        defaults["bundles"] = [SAGEMAKER_MODEL]
    missing = {name: value for name, value in defaults.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=missing) if missing else settings


def _versions() -> str:
    """Return the versions of this program and ONNX Runtime, and the processor's instructions."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from bert.processor import instructions, processor_name

    found = []
    for name in ("bert-train-serve", "onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(
        [*found, f"Python {platform.python_version()}", f"{processor_name()} ({instructions()})"]
    )


def _tune(settings: "ServeSettings") -> int:
    """Print what was measured; returns 130 after Ctrl-C."""
    from service.engine.tune import print_curves
    from service.exports.prepare import prepare

    with exit_on_stop(INTERRUPTED):
        print_curves(prepare(settings))
    return 0


def _plan(settings: "ServeSettings", *, as_json: bool) -> int:
    """Print a plan; returns 130 after Ctrl-C, once the service that it measures has ended."""
    from service.exports.prepare import prepare
    from service.planning.command import print_plan
    from service.planning.settings import PlanSettings

    assert isinstance(settings, PlanSettings)
    with handled(lambda *_: sys.exit(INTERRUPTED)):
        bundles = prepare(settings).bundles
        print_plan(settings.model_copy(update={"bundles": bundles, "model": []}), serve, as_json=as_json)
    return 0


def serve(settings: "ServeSettings") -> int:
    """Serve until a signal, in one process or several; returns the exit code. Raises BertError if it cannot start."""
    from service.engine.bundle_folders import find_bundles
    from service.exports.store import url_of
    from service.listener import address, listen
    from service.logs import LOGGER

    settings = _within_open_files(settings)
    sources = settings.model or [url_of(path) or str(path) for path in settings.bundles]
    if settings.model or any(map(url_of, settings.bundles)):
        settings = _with_bundles(settings)
    found = find_bundles(settings.bundles, strict=settings.strict)
    check_settings(settings, found)
    settings, listeners = listen(settings.model_copy(update={"frontends": count_frontends(settings)}))
    url = address(listeners[0], is_tls=settings.ssl_certfile is not None)
    if settings.log_format == "text":
        print(f"Loading models from {', '.join(sources)}; listening on {url}", flush=True)
    began, fields = time.monotonic(), {"pid": os.getpid(), "frontends": settings.frontends}
    LOGGER.info("the service starts at %s: %s", url, _versions(), extra={"fields": fields})
    code = _run_processes(settings, found, listeners)
    if settings.uds is not None:
        settings.uds.unlink(missing_ok=True)
    LOGGER.info("the service ended with code %d after %.0f s", code, time.monotonic() - began)
    return code


def _run_processes(settings: "ServeSettings", found: "FoundBundles", listeners: "list[socket]") -> int:
    """Serve with the settings' frontends, or in this process without; return the exit code."""
    # A supervisor needs neither HTTP nor an engine.
    if settings.frontends:
        from service.workers.supervisor import Supervisor

        supervisor = Supervisor(settings, found, listeners, settings.frontends)
        with _better_exports(settings, supervisor):
            return supervisor.run()
    from service.http.app import create_app
    from service.http.server import Server
    from service.listener import address
    from service.workers.open_models import open_models

    app = create_app(settings, partial(open_models, found=found))
    with _better_exports(settings, app.service):
        url = address(listeners[0], is_tls=settings.ssl_certfile is not None)
        return Server(app, app.service, url).serve_until_signal(listeners)


def _better_exports(settings: "ServeSettings", serving: "Serving") -> AbstractContextManager[object]:
    """Export the settings' better bundles until the block ends, if there are any."""
    if not settings.better_bundles:
        return nullcontext()
    from service.exports.better_exports import BetterExports

    return BetterExports(settings, serving)


def _within_open_files(settings: "ServeSettings") -> "ServeSettings":
    """Return the settings with as many connections as the limit of open files has room for, which is raised if possible.

    A connection for which there is no file is not accepted, a probe's neither. Raises ConfigError without room for any.
    """
    from bert.errors import ConfigError
    from service.logs import LOGGER

    limit, wanted = allow_open_files(settings.max_connections + OTHER_FILES), settings.max_connections
    most = limit - OTHER_FILES
    if most >= wanted:
        return settings
    if most < 1:
        raise ConfigError(
            f"{limit} open files are allowed (ulimit -n), and a process needs {OTHER_FILES} besides its connections: "
            f"allow {wanted + OTHER_FILES}"
        )
    what = "%d open files are allowed (ulimit -n), so each process serves %d connections and not %d (max_connections)"
    LOGGER.warning(what, limit, most, wanted)
    return settings.model_copy(update={"max_connections": most})


def _with_bundles(settings: "ServeSettings") -> "ServeSettings":
    """Return the settings with the bundles of their URLs and models. Raises BertError if the service cannot start so."""
    from service.exports.prepare import prepare
    from service.listener import listen

    for listener in listen(settings)[1]:  # a port that is taken is better found before an export of minutes
        listener.close()
    return prepare(settings, answer_first=True)


def check_settings(settings: "ServeSettings", found: "FoundBundles") -> None:
    """Check what can be checked before anything is loaded.

    Raises ConfigError for settings that this machine or these bundles cannot have and for wrong keys or certificates,
    ServiceError if there is no folder for the processes' sockets.
    """
    from bert.errors import ConfigError, ServiceError
    from service.access.keys import keys_of, warn_of_unknown
    from service.engine.models import default_names
    from service.engine.slot_layout import slot_layout
    from service.listener import check_certificate

    keys = keys_of(settings)
    check_certificate(settings)
    check_otel(settings)
    slot_layout(settings, usable_cores(), found)
    names = [(each.name, each.task) for each in found.values()]
    names += ((name, "") for name in settings.failed_models)
    default_names(names, settings.default_models)
    warn_of_unknown(keys, dict(names))
    if settings.sample_dir is not None and settings.sample_share:
        try:
            settings.sample_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"sample_dir ({settings.sample_dir}) cannot be made: {error}") from None
    if settings.frontends and not can_make_runtime_dir():
        raise ServiceError(
            f"frontends ({settings.frontends}) need a folder for their socket, and none can be made under "
            f"{tempfile.gettempdir()}: set TMPDIR, or --frontends 0"
        )


def check_otel(settings: "ServeSettings") -> None:
    """Raise ConfigError if spans are to be sent and the extra for it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    from bert.errors import ConfigError

    try:
        if settings.otel_endpoint:
            version("opentelemetry-exporter-otlp-proto-http")
    except PackageNotFoundError:
        raise ConfigError(
            "otel_endpoint needs the extra otel: pip install 'bert-train-serve[otel]'"
        ) from None


def count_frontends(settings: "ServeSettings") -> int:
    """Return how many processes speak HTTP besides the engine's, 0 if one process does everything.

    The default is one for each CORES_PER_FRONTEND, or 0 without POSIX or a folder for the processes' sockets.
    """
    if settings.frontends is not None:
        return settings.frontends
    if os.name != "posix" or not can_make_runtime_dir():
        return 0
    return max(1, usable_cores() // CORES_PER_FRONTEND)


if __name__ == "__main__":
    sys.exit(main())
