"""uvicorn with our protocol and signals, and what is printed when the service is ready."""

import asyncio
import json
import shlex
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from bert.errors import BertError, ConfigError
from service.http.lifecycle import Service, log_failure
from service.listener import check_certificate, drop_new_connections
from service.logs import LOGGER, log_signal, report_fatal
from service.system import FAILURE, file_stamp, on_hang_up
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
        self._certificate = self._stamps()
        service.metrics.certificate_expiry.set(check_certificate(settings))
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
                proxy_headers=settings.forwarded_allow_ips is not None,
                forwarded_allow_ips=settings.forwarded_allow_ips,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                backlog=settings.backlog_connections,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=settings.shutdown_grace_s,
            )
        )

    def serve_until_signal(self, listeners: list[socket.socket]) -> int:
        """Run, and return the exit code."""
        self.run(sockets=listeners)
        return FAILURE if self.failed else 0

    def _stamps(self) -> list[tuple[int, ...] | None]:
        settings = self._service.settings
        return [file_stamp(settings.ssl_certfile), file_stamp(settings.ssl_keyfile)]

    async def on_tick(self, counter: int) -> bool:
        """Every second read the certificate again if it has changed; one that is wrong leaves that before."""
        if self.config.is_ssl and counter % 10 == 0 and (stamps := self._stamps()) != self._certificate:
            self._certificate, settings = stamps, self._service.settings
            try:
                expiry = check_certificate(settings)
            except ConfigError as error:
                LOGGER.error("the certificate from before stays: %s", error)
            else:
                assert self.config.ssl is not None and settings.ssl_certfile is not None
                self.config.ssl.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
                self._service.metrics.certificate_expiry.set(expiry)
                LOGGER.info("the certificate was read again")
        return await super().on_tick(counter)

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
        """Look at the bundles again on SIGHUP."""
        with super().capture_signals():
            on_hang_up(self._service.look_again)
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
                tls: Any = (
                    {"ssl": self.config.ssl, "ssl_handshake_timeout": 1.0} if self.config.is_ssl else {}
                )
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, connection, **tls)
            except BlockingIOError:
                return  # none is left
            except (ConnectionError, ssl.SSLError):
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
    registry, settings = service.loaded.registry, service.settings
    curl, base, here = "curl -s", url.rpartition(":")[0], ""
    if settings.uds is not None:
        url = base = "http://localhost" if settings.ssl_certfile is None else "https://localhost"
        curl += f" --unix-socket {shlex.quote(str(settings.uds))}"
        here = f"{curl} "  # a browser cannot open it
    page = f"try it: {url}/, status: {url}/status, " if settings.page and not here else ""
    operators = f"{here}{url}" if settings.admin_port is None else f"{base}:{settings.admin_port}"
    links = f"{page}docs: {here}{url}/docs, metrics: {operators}/metrics"
    lines = [f"\nReady at {settings.uds or url} ({links})"]
    for name, model in registry.models.items():
        manifest = model.bundle.manifest
        default = ", default" if registry.defaults.get(model.spec.task) == name else ""
        lines.append(f"  {model.name} {manifest.version}: {model.spec.task}, {manifest.precision}{default}")
    lines += [f"  {each.name} is left out: {each.reason}" for each in registry.left_out]
    lines.append("Try:")
    key = " -H 'x-api-key: '\"$BERT_SERVE_API_KEY\"" if settings.needs_key else ""
    for name, model in registry.models.items():
        task = FIRST[model.spec.task]
        body = dict(task.example_of(model.spec))
        if registry.defaults.get(model.spec.task) != name:
            body["model"] = name
        sent = shlex.quote(json.dumps(body))
        lines.append(f"  {curl} {url}{task.path}{key} -H 'content-type: application/json' -d {sent}")
    return "\n".join((*lines, "Ctrl-C stops it."))
