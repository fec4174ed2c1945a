"""The service on a real socket, on a thread of the test's process, so that a test can reach inside it."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from service.http.app import create_app
from service.http.lifecycle import Loaded, Service
from service.http.server import Server
from service.listener import address, listen
from service.scheduling.scheduler import Scheduler
from service.settings import ServeSettings
from service.workers.open_models import open_models

PATIENT: dict[str, Any] = {"request_timeout_ms": 300_000}
"""Settings for real models on a busy machine."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Asks the service at `url`, a connection for each request."""

    url: str

    def connect_to(self) -> tuple[str, int]:
        place = urlsplit(self.url)
        assert place.hostname and place.port
        return place.hostname, place.port

    def connect(self) -> HTTPConnection:
        return HTTPConnection(*self.connect_to(), timeout=60)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = self.connect()
        try:
            connection.request(
                method, path, body, {k.replace("_", "-"): v for k, v in (headers or {}).items()}
            )
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("content_type", "application/json")
        return self.request("POST", path, data, headers)


@dataclass(frozen=True)
class Live(Client):
    server: Server
    service: Service

    @property
    def loaded(self) -> Loaded:
        return self.service.loaded

    @property
    def scheduler(self) -> Scheduler:
        scheduler = self.loaded.scheduler
        assert isinstance(scheduler, Scheduler)
        return scheduler

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels."""
        self.service.metrics.refresh()
        samples = (sample for metric in self.service.metrics.registry.collect() for sample in metric.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def settled_metric(self, name: str, **labels: str) -> float:
        """Return the metric once no request is in flight; a request is recorded after its response is sent."""
        eventually(lambda: self.metric("bert_requests_in_flight") == 0)
        return self.metric(name, **labels)


def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait for something that another thread brings about; on a busy machine that takes long."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@contextmanager
def serving(*, wait: bool = True, **settings: Any) -> Iterator[Live]:
    """Run the service until the block ends."""
    chosen = ServeSettings(port=0, log_format="json", log_level="error", **settings)
    chosen, listeners = listen(chosen)
    app = create_app(chosen, open_models)
    server = Server(app, app.service, address(listeners[0]))
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners}, daemon=True)
    thread.start()
    url = address(listeners[0], is_tls=chosen.ssl_certfile is not None)
    live = Live(url, server, app.service)
    try:
        eventually(lambda: server.started)
        if wait:
            eventually(lambda: live.service.why_not_ready() is None or server.failed)
            assert not server.failed, "the models could not be loaded; standard error says why"
        yield live
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
