"""deploy/nginx/nginx.conf with a real nginx; skipped where none is installed."""

import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.settings import ServeSettings
from tests.support.live import Client, Live, eventually, serving
from tests.support.nginx import CONF, free_port, needs_nginx, proxy
from tests.support.tiny import write_tiny_bundles


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("bundles")
    write_tiny_bundles(folder)
    with serving(
        bundles=[folder], default_models={"classification": "mood"}, api_key="correct-horse"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def front(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with proxy(tmp_path_factory.mktemp("nginx"), live.connect_to()[1]) as client:
        yield client


class Upstream(BaseHTTPRequestHandler):
    """Refuses with the status that a path names, or answers each line as soon as it has arrived."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.path != "/classify":
            self.answer(int(self.path.strip("/")))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = int(self.headers.get("Content-Length", 0))
        while part := self.rfile.read(min(left, 2**16)) if left else self.chunk():
            left -= len(part) if left else 0
            line = b"%d\n" % len(part)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return b""
        size = int(self.rfile.readline(), 16)
        return self.rfile.read(size + 2)[:size]

    def answer(self, status: int) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        for name, value in (("Retry-After", "7"), ("Content-Type", "application/problem+json")):
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: object) -> None:
        pass


class Brief(Upstream):
    """Keeps no connection open, which would outlive the server."""

    protocol_version = "HTTP/1.0"


@contextmanager
def serving_upstream(port: int = 0, kind: type[Upstream] = Upstream) -> Iterator[int]:
    """Run an upstream that does what the path says, and give its port."""
    server = ThreadingHTTPServer(("127.0.0.1", port), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_upstream() as port, proxy(tmp_path_factory.mktemp("nginx"), port) as client:
        yield client


def test_sizes_and_times_fit_those_of_the_service() -> None:
    conf, settings = CONF.read_text(encoding="utf-8"), ServeSettings()

    def value(name: str) -> int:
        found = re.search(rf"^\s*{name} (\d+)[ms];", conf, re.MULTILINE)
        assert found, name
        return int(found[1])

    assert value("client_max_body_size") * 2**20 == settings.max_body_bytes
    assert value("client_body_timeout") * 1000 == settings.body_timeout_ms
    assert value("proxy_read_timeout") * 1000 > settings.request_timeout_ms
    assert value("keepalive_timeout") < settings.keep_alive_s


@needs_nginx
def test_answers_keys_and_ids_pass_and_connections_stay_open(live: Live, front: Client) -> None:
    key = {"authorization": "Bearer correct-horse"}
    assert front.post("/classify", {"text": "a film"}).status == 401
    for _ in range(10):
        reply = front.post("/classify", {"text": "a film"}, x_request_id="order-17", **key)
        assert (reply.status, reply.headers["x-request-id"]) == (200, "order-17")
    assert "inference" in reply.headers["server-timing"]
    assert reply.json == live.post("/classify", {"text": "a film"}, **key).json
    made = front.post("/classify", {"text": "a film"}, **key).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made), "nginx' own id, so that both logs have the same"
    eventually(lambda: live.metric("bert_open_connections") >= 1)
    assert front.get("/health/ready").status == 200
    assert front.get("/metrics").status == 404


@needs_nginx
def test_the_pages_load(front: Client) -> None:
    for path in ("/", "/status", "/web/tasks.js", "/docs"):
        assert front.get(path).status == 200, path


@needs_nginx
def test_under_a_path_the_pages_load_and_lines_are_answered(live: Live, tmp_path: Path) -> None:
    under_a_path = {
        "location": ("/ {", "/bert/ {"),
        "proxy_pass": ("http://bert;", "http://bert/;"),
        "rewrite": ("^/-lines(/.*)$", "^/-lines/bert(/.*)$"),
    }
    key = {"authorization": "Bearer correct-horse"}
    with proxy(tmp_path, live.connect_to()[1], **under_a_path) as client:
        for path in ("", "status", "web/tasks.js", "docs", "docs/assets/swagger-ui.css", "openapi.json"):
            assert client.get(f"/bert/{path}").status == 200, path
        assert client.post("/bert/classify", {"text": "a film"}, **key).status == 200
        line = json.dumps({"text": "a film"}).encode() + b"\n"
        reply = client.post("/bert/classify", line * 2, content_type="application/x-ndjson", **key)
        assert (reply.status, len(reply.body.splitlines())) == (200, 2)


@needs_nginx
def test_a_path_that_is_passed_on_pages_of_another_site_and_the_clients_address(
    live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = {
        "root_path": "/bert",
        "cors_origins": "https://app.example",
        "forwarded_allow_ips": "127.0.0.1",
    }
    bundles, origin = live.service.settings.bundles, {"origin": "https://app.example"}
    with (
        serving(bundles=bundles, **more) as own,
        proxy(tmp_path, own.connect_to()[1], location=("/ {", "/bert/ {")) as client,
        caplog.at_level("INFO", "bert_serve"),
    ):
        for path in ("", "status", "web/tasks.js", "docs", "docs/assets/swagger-ui.css", "openapi.json"):
            assert client.get(f"/bert/{path}").status == 200, path
        asks = {**origin, "access-control-request-method": "POST"}
        assert client.request("OPTIONS", "/bert/classify", headers=asks).status == 200
        reply = client.post("/bert/ner", {"text": "a film"}, **origin)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://app.example")
        logging.getLogger("bert_serve").addHandler(caplog.handler)
        try:
            client.post("/bert/ner", {"text": 1}, x_forwarded_for="6.6.6.6")
            eventually(lambda: "POST /ner" in caplog.text)
        finally:
            logging.getLogger("bert_serve").removeHandler(caplog.handler)
        assert caplog.records[-1].__dict__["fields"]["client"] == "6.6.6.6", (
            "it came by a trusted proxy of this machine"
        )


@needs_nginx
def test_a_body_over_the_limit_is_refused_in_the_services_form(front: Client) -> None:
    reply = front.post("/classify", b"x" * (2**21 + 1), x_request_id='a"b')
    assert (reply.status, reply.json["type"]) == (413, "urn:bert-serve:body-too-large")
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["request_id"] == reply.headers["x-request-id"] != 'a"b'
    assert front.post("/classify", b"x" * 2**21, authorization="Bearer correct-horse").status == 400, (
        "no JSON, but not too large"
    )


@needs_nginx
@pytest.mark.parametrize("status", [429, 503, 504, 500])
def test_a_refusal_passes_with_its_retry_after(refusing: Client, status: int) -> None:
    reply = refusing.post(f"/{status}", {"text": "a film"})
    assert (reply.status, reply.headers["retry-after"], reply.body) == (status, "7", b"{}")


@needs_nginx
def test_a_service_that_is_away_is_told_as_one_that_starts(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port()) as client:
        reply = client.post("/classify", {"text": "a film"}, x_request_id="order-18")
        assert (reply.status, reply.json["type"]) == (503, "urn:bert-serve:not-ready")
        assert (reply.headers["retry-after"], reply.json["request_id"]) == ("1", "order-18")


@needs_nginx
def test_of_two_services_the_one_that_is_there_is_asked_also_if_it_was_away_just_before(
    tmp_path: Path,
) -> None:
    ports = [free_port(), free_port()]
    with proxy(tmp_path, *ports) as client:
        for there in (0, 1, 0):
            with serving_upstream(ports[there], Brief):
                statuses = [client.post("/429", {"text": "a film"}).status for _ in range(20)]
                assert statuses == [429] * 20, "each is its own"


@needs_nginx
def test_a_service_that_does_not_answer_is_told_as_late(tmp_path: Path) -> None:
    short = {"proxy_read_timeout": ("35s", "1s")}
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        proxy(tmp_path, silent.getsockname()[1], **short) as client,
    ):
        reply = client.post("/classify", {"text": "a film"})
        assert (reply.status, reply.json["type"]) == (504, "urn:bert-serve:deadline-exceeded")


@needs_nginx
def test_lines_are_answered_while_more_are_sent(refusing: Client) -> None:
    place = urlsplit(refusing.url)
    with socket.create_connection((place.hostname, place.port), 30) as connection:
        lines = b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
        connection.sendall(b"POST /classify HTTP/1.1\r\nHost: a\r\n%s\r\n" % lines)
        received = connection.makefile("rb")
        line = json.dumps({"text": "a film"}).encode() + b"\n"
        for turn in range(3):
            connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            while turn == 0 and received.readline().strip():
                pass
            assert received.readline().strip() == b"3"
            assert received.readline() == b"%d\n" % len(line), "before the next line is sent"
            assert received.readline().strip() == b""
        connection.sendall(b"0\r\n\r\n")
        assert received.readline().strip() == b"0"


@needs_nginx
def test_the_service_answers_lines_through_it(front: Client) -> None:
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in ("a film", "a warm film") * 50)
    key = {"authorization": "Bearer correct-horse"}
    reply = front.post("/classify", lines, content_type="application/x-ndjson", **key)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-ndjson")
    answered = [json.loads(line) for line in reply.body.splitlines()]
    assert len(answered) == 100
    assert answered[1] == front.post("/classify", {"text": "a warm film"}, **key).json
    assert front.post("/classify", lines, content_type="application/x-ndjson").status == 401


@needs_nginx
def test_lines_may_be_larger_than_a_body(refusing: Client) -> None:
    connection = HTTPConnection(urlsplit(refusing.url).netloc, timeout=30)
    connection.request("POST", "/classify", b"x" * 3 * 2**20, {"content-type": "application/x-ndjson"})
    response = connection.getresponse()
    assert response.status == 200
    assert sum(map(int, response.read().split())) == 3 * 2**20
    connection.close()
