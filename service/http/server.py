"""The process: a listening socket, uvicorn on it, signals, and what a person reads on the terminal."""

import asyncio
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Literal

import uvicorn

from bert.errors import BertError
from service.exit_signals import is_ignored
from service.http.app import create_app
from service.http.endpoints import EXAMPLE_PAIR, TASK_ENDPOINTS, TRY_FIRST
from service.http.lifecycle import OpenModels, Service
from service.logs import LOGGER
from service.metrics import Metrics
from service.settings import ServeSettings


def protocol(settings: ServeSettings, metrics: Metrics) -> type[asyncio.Protocol] | Literal["h11"]:
    """Return what speaks HTTP; without httptools, as on Windows, h11, which bounds a request's head by itself."""
    if find_spec("httptools") is None:
        return "h11"
    from service.http.protocol import BoundedProtocol

    limits = {
        "metrics": metrics,
        "max_connections": settings.max_connections,
        "answer_timeout_s": settings.answer_timeout_ms / 1000,
        "head_timeout_s": settings.body_timeout_ms / 1000,
        "linger_s": settings.body_timeout_ms / 1000,
    }
    return type("Protocol", (BoundedProtocol,), limits)


class Server(uvicorn.Server):
    """uvicorn, that drains before it stops, exits with 0 after a signal, and stops when the models cannot be
    loaded.
    """

    def __init__(
        self,
        settings: ServeSettings,
        url: str,
        *,
        open_models: OpenModels,
        announces: bool = True,
    ) -> None:
        """Build the application; nothing runs yet. `announces`: it tells people when it can answer."""
        self._settings, self._url = settings, url
        self._announces = announces and settings.log_format == "text"
        self.failed = False
        app = create_app(settings, open_models=open_models, on_ready=self._ready, on_failure=self._fail)
        self._service: Service = app.service
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(settings, app.service.metrics),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here asks who the client is
                backlog=settings.backlog_connections,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=settings.shutdown_grace_s,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop.

        Not ready at once, the listening socket closed after `drain_s`. A second signal does not wait.
        """
        first = not self._service.is_stopping
        self._service.drain()
        if first and sig != signal.SIGINT and self._settings.drain_s > 0:
            timer = threading.Timer(self._settings.drain_s, self._stop)
            timer.daemon = True
            timer.start()
        else:
            self.force_exit = not first and sig == signal.SIGINT
            self._stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle a hang-up as SIGTERM too, unless it is to be ignored."""
        with super().capture_signals():
            hang_up = getattr(signal, "SIGHUP", None)
            is_main = threading.current_thread() is threading.main_thread()
            if hang_up is not None and is_main and not is_ignored(hang_up):
                signal.signal(hang_up, self.handle_exit)
            yield

    async def on_tick(self, counter: int) -> bool:
        """Note ten times a second how many connections are open."""
        self._service.metrics.open_connections.set(len(self.server_state.connections))
        return await super().on_tick(counter)

    def _stop(self) -> None:
        self.should_exit = True

    def _ready(self) -> None:
        if self._announces:
            print(
                ready_message(self._service, self._url, with_key=self._settings.api_key is not None),
                flush=True,
            )

    def _fail(self, error: Exception) -> None:
        self.failed = True
        if isinstance(error, BertError):
            print(f"bert-serve: {error}", file=sys.stderr)
        else:
            LOGGER.error("the models could not be loaded", exc_info=error)
        self._stop()


def ready_message(service: Service, url: str, *, with_key: bool) -> str:
    """Return the address, the models, and a curl line for each that an endpoint of TRY_FIRST answers with."""
    registry = service.loaded.registry
    lines = [f"\nReady at {url} (docs: {url}/docs, metrics: {url}/metrics)"]
    for model in registry.models.values():
        manifest = model.bundle.manifest
        default = ", default" if registry.defaults.get(model.spec.task) == model.name else ""
        lines.append(f"  {model.name} {manifest.version}: {model.spec.task}, {manifest.precision}{default}")
    lines += [f"  {each.name} is left out: {each.reason}" for each in registry.left_out]
    lines.append("Try:")
    key = " -H 'x-api-key: '\"$BERT_SERVE_API_KEY\"" if with_key else ""
    endpoints = {endpoint.task: endpoint for endpoint in TASK_ENDPOINTS if endpoint.path in TRY_FIRST}
    for model in registry.models.values():
        if (endpoint := endpoints.get(model.spec.task)) is None:
            continue
        body = dict(EXAMPLE_PAIR if model.spec.pair else endpoint.sent)
        if registry.defaults.get(model.spec.task) != model.name:
            body["model"] = model.name
        sent = shlex.quote(json.dumps(body))
        lines.append(f"  curl -s {url}{endpoint.path}{key} -H 'content-type: application/json' -d {sent}")
    return "\n".join((*lines, "Ctrl-C stops it."))
