"""uvicorn with our protocol and signals, and what is printed when the service is ready."""

import asyncio
import json
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from bert.errors import BertError
from service.http.lifecycle import Service, log_failure
from service.listener import drop_new_connections
from service.logs import LOGGER, log_signal, report_fatal
from service.system import FAILURE, is_ignored
from service.tasks.table import FIRST

HANDSHAKE_S = 0.1
"""Seconds given to connections that are being made when the service stops."""


def protocol(service: Service) -> type[asyncio.Protocol] | Literal["h11"]:
    """Return the HTTP protocol; without httptools (Windows) h11, which limits request heads by itself."""
    if find_spec("httptools") is None:
        return "h11"
    from service.http.protocol import BoundedProtocol

    settings = service.settings
    limits = {
        "metrics": service.metrics,
        "bodies": service.bodies,
        "unsent": service.unsent,
        "request_log": service.request_log,
        "max_connections": settings.max_connections,
        "answer_timeout_s": settings.answer_timeout_ms / 1000,
        "head_timeout_s": settings.body_timeout_ms / 1000,
        "linger_s": settings.body_timeout_ms / 1000,
    }
    return type("Protocol", (BoundedProtocol,), limits)


class Server(uvicorn.Server):
    """uvicorn that drains before it stops, exits with 0 after a signal, and stops if the models cannot be loaded."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        url: str,
        *,
        announces: bool = True,
        others_accept: Callable[[], bool] | None = None,
    ) -> None:
        """Configure uvicorn; with `announces`, and text logs, the ready message is printed.

        `others_accept` tells whether other processes accept on the same socket after this one has stopped; None for the
        process that a service of one process is.
        """
        settings = service.settings
        self._service, self._url = service, url
        self._others_accept = others_accept
        self._announces = announces and settings.log_format == "text"
        self.failed = False
        """True after the models could not be loaded."""
        service.on_ready, service.on_failure = self._ready, self._fail
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(service),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the client's address is never used
                backlog=settings.backlog_connections,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=settings.shutdown_grace_s,
            )
        )

    def serve_until_signal(self, listeners: list[socket.socket]) -> int:
        """Run, and return the exit code."""
        self.run(sockets=listeners)
        return FAILURE if self.failed else 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Report not ready now, and stop accepting connections after `drain_s`; at once on SIGINT or a second signal."""
        if (
            self._others_accept is None
        ):  # else the parent has told; a handler must not write where it may have interrupted
            threading.Thread(target=log_signal, args=[sig]).start()
        first = not self._service.is_stopping()
        self._service.drain()
        drain_s = self._service.settings.drain_s
        if first and sig != signal.SIGINT and drain_s > 0:
            timer = threading.Timer(drain_s, self._stop)
            timer.daemon = True
            timer.start()
        else:
            self.force_exit = not first and sig == signal.SIGINT
            self._stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGHUP like SIGTERM, unless the process was started to ignore it."""
        with super().capture_signals():
            hang_up = getattr(signal, "SIGHUP", None)
            is_main = threading.current_thread() is threading.main_thread()
            if hang_up is not None and is_main and not is_ignored(hang_up):
                signal.signal(hang_up, self.handle_exit)
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, once every connection that the kernel has accepted is accepted here too.

        The kernel resets those that still wait when the last process closes the listening socket.
        """
        if self._others_accept is None or not self._others_accept():
            for listener in sockets or []:
                await self._accept_last(listener)
        await super().shutdown(sockets)

    async def _accept_last(self, listener: socket.socket) -> None:
        """Let no further connection begin, wait HANDSHAKE_S, and then accept all that have begun."""
        drop_new_connections(listener)
        await asyncio.sleep(HANDSHAKE_S)
        # No more than that wait; where the filter is missing, others may come for ever.
        for _ in range(self.config.backlog + 1):
            try:
                connection, _ = listener.accept()
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, connection)
            except BlockingIOError:
                return  # none is left
            except ConnectionError:
                continue  # its client has gone
            except OSError as error:
                LOGGER.error("the last connections could not be accepted, and are cut: %s", error)
                return

    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        state, config = self.lifespan.state, self.config
        made = config.http_protocol_class(config=config, server_state=self.server_state, app_state=state)  # type: ignore[call-arg]
        return made

    def _stop(self) -> None:
        self.should_exit = True

    def _ready(self) -> None:
        if self._announces:
            print(ready_message(self._service, self._url), flush=True)

    def _fail(self, error: Exception) -> None:
        self.failed = True
        if isinstance(error, BertError):
            report_fatal("bert-serve", error)
        else:
            log_failure(error)
        self._stop()


def ready_message(service: Service, url: str) -> str:
    """Return the address, the models, and a curl line for each."""
    registry = service.loaded.registry
    page = f"try it: {url}/, status: {url}/status, " if service.settings.page else ""
    admin = service.settings.admin_port
    operators = url if admin is None else f"{url.rpartition(':')[0]}:{admin}"
    lines = [f"\nReady at {url} ({page}docs: {url}/docs, metrics: {operators}/metrics)"]
    for model in registry.models.values():
        manifest = model.bundle.manifest
        default = ", default" if registry.defaults.get(model.spec.task) == model.name else ""
        lines.append(f"  {model.name} {manifest.version}: {model.spec.task}, {manifest.precision}{default}")
    lines += [f"  {each.name} is left out: {each.reason}" for each in registry.left_out]
    lines.append("Try:")
    key = " -H 'x-api-key: '\"$BERT_SERVE_API_KEY\"" if service.settings.needs_key else ""
    for model in registry.models.values():
        task = FIRST[model.spec.task]
        body = dict(task.example_of(model.spec))
        if registry.defaults.get(model.spec.task) != model.name:
            body["model"] = model.name
        sent = shlex.quote(json.dumps(body))
        lines.append(f"  curl -s {url}{task.path}{key} -H 'content-type: application/json' -d {sent}")
    return "\n".join((*lines, "Ctrl-C stops it."))
