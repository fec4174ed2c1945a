"""Where the service listens, and for whom: Unix socket, TLS, IPv6, proxies, other sites."""

import http.client
import json
import logging
import re
import shutil
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.errors import ServiceError
from service.cli import main
from service.listener import check_certificate, listen
from service.settings import ServeSettings
from tests.support.live import Client, Live, eventually, serving
from tests.support.problems import TEXT
from tests.support.process import started

KEY, DAY_S = "correct-horse", 86_400
ORIGIN = {"origin": "https://app.example"}
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self.path))


def asked(connection: http.client.HTTPConnection, **headers: str) -> tuple[int, str]:
    """Ask for a class; return the status and the request's id."""
    sent = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    connection.request("POST", "/classify", json.dumps(TEXT), sent)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.headers["x-request-id"]


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The fields of the log's lines."""
    found: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(getattr(record, "fields", {}))

    logger, handler = logging.getLogger("bert_serve"), Handler()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield found
    logger.setLevel(before)
    logger.removeHandler(handler)


def client_of(lines: list[dict[str, Any]], request_id: str) -> object:
    eventually(lambda: any(line.get("request_id") == request_id for line in lines))
    return next(line for line in lines if line.get("request_id") == request_id)["client"]


def certificate(folder: Path, name: str, days: int = 2) -> tuple[Path, Path]:
    """Make a key and a certificate that it signs itself, for so many days."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        str(days),
    ]
    places = ["-keyout", str(key), "-out", str(cert)]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *places, *subject], check=True, capture_output=True)
    return cert, key


def test_a_unix_socket_has_its_mode_and_goes_with_the_service(bundles: Path, short_tmp_path: Path) -> None:
    path = short_tmp_path / "serve.sock"
    arguments = [
        "--bundles",
        str(bundles / "mood"),
        "--uds",
        str(path),
        "--uds-mode",
        "600",
        "--admin-port",
        "0",
    ]
    with started(*arguments) as process:
        shown = process.until("Ctrl-C stops it.")
        curl = f"curl -s --unix-socket {path} http://localhost"
        assert f"Ready at {path} (docs: {curl}/docs, metrics: http://localhost:" in shown
        assert f"{curl}/classify" in shown
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert asked(UnixConnection(path))[0] == 200
        port = re.search(r"http://localhost:(\d+)/metrics", shown)
        assert port and b"bert_ready 1.0" in Client(f"http://127.0.0.1:{port[1]}").get("/metrics").body
        with pytest.raises(ServiceError, match="Address already in use"):
            listen(ServeSettings(uds=path))
        process.popen.terminate()
        assert process.popen.wait(120) == 0
        assert not path.exists()
    with started(*arguments[:-2]) as process:
        shown = process.until("Ctrl-C stops it.")
        assert f"metrics: {curl}/metrics)" in shown
        asks = subprocess.run(
            [*curl.split()[:-1], "http://localhost/metrics"], capture_output=True, check=True
        )
        assert b"bert_ready 1.0" in asks.stdout


def test_a_socket_that_an_ended_service_left_is_replaced_and_a_file_is_not(short_tmp_path: Path) -> None:
    path = short_tmp_path / "serve.sock"
    for _ in range(2):
        (listener,) = listen(ServeSettings(uds=path))[1]
        listener.close()
    path.unlink()
    path.write_text("mine")
    with pytest.raises(ServiceError, match="Address already in use; take another with --uds"):
        listen(ServeSettings(uds=path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        (None, "203.0.113.9", "unix"),
        ("127.0.0.1", "203.0.113.9", "unix"),
        ("unix", "203.0.113.9", "203.0.113.9"),
        ("unix", "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("unix,10.0.0.0/8", "6.6.6.6, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("unix", "2001:db8::7", "2001:db8::7"),
        ("unix", 'x" status=200 \xff', "x%22%20status%3D200%20%C3%BF"),
        ("unix", "x" * 20_000, "x" * 64),
    ],
)
def test_the_client_behind_a_proxy_at_the_socket_is_who_it_names(
    bundles: Path,
    short_tmp_path: Path,
    lines: list[dict[str, Any]],
    trusted: str | None,
    forwarded: str,
    client: str,
) -> None:
    path = short_tmp_path / "serve.sock"
    more: dict[str, Any] = {"access_log": True, "forwarded_allow_ips": trusted}
    with serving(bundles=[bundles / "mood"], uds=path, **more):
        status, request_id = asked(UnixConnection(path), x_forwarded_for=forwarded)
        assert (status, client_of(lines, request_id)) == (200, client)


@pytest.mark.parametrize(
    ("trusted", "client"), [("10.0.0.0/8", "127.0.0.1"), ("127.0.0.1,10.0.0.0/8", "203.0.113.9")]
)
def test_only_a_trusted_proxy_names_the_client(
    bundles: Path, lines: list[dict[str, Any]], trusted: str, client: str
) -> None:
    with serving(bundles=[bundles / "mood"], access_log=True, forwarded_allow_ips=trusted) as live:
        reply = live.post("/classify", TEXT, x_forwarded_for="6.6.6.6, 203.0.113.9, 10.0.0.7")
        assert client_of(lines, reply.headers["x-request-id"]) == client


@needs_openssl
def test_a_certificate_is_read_again_when_it_changes(bundles: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")

    first = tmp_path / "first.crt"
    shutil.copy(cert, first)

    def is_served(trusted: Path) -> bool:
        context = ssl.create_default_context(cafile=str(trusted))
        try:
            return asked(http.client.HTTPSConnection(host, port, timeout=30, context=context))[0] == 200
        except ssl.SSLCertVerificationError:
            return False

    with serving(bundles=[bundles / "mood"], ssl_certfile=cert, ssl_keyfile=key, max_body_bytes=1000) as live:
        host, port = live.connect_to()
        assert is_served(first)
        expiry = "bert_certificate_expiry_timestamp_seconds"
        assert live.metric(expiry) == pytest.approx(time.time() + 2 * DAY_S, abs=60)
        context = ssl.create_default_context(cafile=str(first))
        large = http.client.HTTPSConnection(host, port, timeout=30, context=context)
        large.request("POST", "/classify", b"x" * 500_000, {"content-type": "application/json"})
        assert large.getresponse().status == 413, "it was sent whole before the response was read"
        large.close()
        cert.write_text("broken")
        eventually(lambda: live.server._certificate == live.server._stamps())
        assert is_served(first)
        certificate(tmp_path, "second", 3)
        eventually(lambda: is_served(cert))
        assert not is_served(first)
        assert live.metric(expiry) == pytest.approx(time.time() + 3 * DAY_S, abs=60)


@needs_openssl
def test_the_expiry_is_of_the_first_certificate_whatever_else_its_file_holds(tmp_path: Path) -> None:
    issuer = certificate(tmp_path, "issuer")[0].read_text()
    cert, key = certificate(tmp_path, "in a far year", 30_000)
    cert.write_text(f"made by hand\n{key.read_text()}{cert.read_text()}{issuer}")
    settings = ServeSettings(bundles=[tmp_path], ssl_certfile=cert)
    assert check_certificate(settings) == pytest.approx(time.time() + 30_000 * DAY_S, abs=60)


@needs_openssl
def test_a_certificate_that_cannot_be_used_ends_the_start_with_2(
    bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, _ = certificate(tmp_path, "first")
    given = ["--bundles", str(bundles / "mood"), "--log-level", "error", "--ssl-certfile", str(cert)]
    assert main([*given, "--ssl-keyfile", str(tmp_path / "none")]) == 2
    assert main(given) == 2, "the certificate's file has no key"
    assert capsys.readouterr().err.count(f"bert-serve: ssl_certfile {cert}, ssl_keyfile ") == 2


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_addresses_of_both_families_are_served(bundles: Path, lines: list[dict[str, Any]]) -> None:
    more: dict[str, Any] = {"access_log": True, "forwarded_allow_ips": "127.0.0.1"}
    with serving(bundles=[bundles / "mood"], host="::", **more) as live:
        port = live.connect_to()[1]
        for host, client in (("::1", "::1"), ("127.0.0.1", "203.0.113.9")):
            connection = http.client.HTTPConnection(host, port, timeout=30)
            status, request_id = asked(connection, x_forwarded_for="203.0.113.9")
            assert (status, client_of(lines, request_id)) == (200, client)


@pytest.fixture(scope="module")
def crossed(bundles: Path) -> Iterator[Live]:
    with serving(bundles=[bundles / "mood"], api_key=KEY, cors_origins="https://app.example") as live:
        yield live


def test_a_page_of_a_named_site_may_call(crossed: Live) -> None:
    asks = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    allowed = crossed.request("OPTIONS", "/classify", headers={**ORIGIN, **asks})
    assert allowed.status == 200, "a preflight has no key"
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert {"Authorization", "Traceparent"} <= set(
        allowed.headers["access-control-allow-headers"].split(", ")
    )
    for reply in (
        allowed,
        crossed.post("/classify", TEXT, **ORIGIN, x_api_key=KEY),
        crossed.post("/classify", TEXT, **ORIGIN),
    ):
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert reply.status == 401 and "Retry-After" in reply.headers["access-control-expose-headers"]


def test_a_page_of_another_site_may_not_and_by_default_none(crossed: Live, live: Live) -> None:
    for service, origin in ((crossed, "https://other.example"), (live, "https://app.example")):
        asks = {"origin": origin, "access_control_request_method": "POST"}
        refused = service.request("OPTIONS", "/classify", headers=asks)
        assert refused.status >= 400 and "access-control-allow-origin" not in refused.headers
        reply = service.post("/classify", TEXT, origin=origin, x_api_key=KEY)
        assert reply.status == 200 and "access-control-allow-origin" not in reply.headers


def test_paths_with_and_without_the_root_path_are_served(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], root_path="/bert", api_key=KEY) as live:
        for path in (
            "/docs",
            "/",
            "/status",
            "/openapi.json",
            "/health/ready",
            "/metrics",
            "/docs/assets/swagger-ui.css",
        ):
            assert live.get(path).status == live.get(f"/bert{path}").status == 200, path
        for path in ("/classify", "/bert/classify"):
            assert live.post(path, TEXT, x_api_key=KEY).status == 200
            assert live.post(path, TEXT).status == 401
        assert live.get("/bertie/docs", x_api_key=KEY).status == 404
        labels = {"endpoint": "/classify", "status": "200"}
        assert live.settled_metric("bert_request_duration_seconds_count", **labels) == 2
