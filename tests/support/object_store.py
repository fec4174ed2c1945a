"""A real S3 API on this machine (moto), and a proxy before it that breaks downloads off."""

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.kills import free_port

BUCKET = "texts"


def credentials(url: str) -> dict[str, str]:
    """Return the environment in which S3 clients ask this store."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def object_store(log: Path) -> Iterator[str]:
    """Run moto's server with an empty bucket; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            until = time.monotonic() + 60
            while not _made_bucket(port):
                assert server.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _made_bucket(port: int) -> bool:
    try:
        return request(f"http://127.0.0.1:{port}", "PUT", f"/{BUCKET}") == 200
    except OSError:
        return False


def put(url: str, key: str, content: bytes) -> None:
    """Write an object."""
    assert request(url, "PUT", f"/{BUCKET}/{key}", content) == 200


def request(url: str, method: str, path: str, body: bytes = b"") -> int:
    """Send a request; return its status. moto checks no signature."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request(
            method, path, body, {"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3/x"}
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class BreakingProxy:
    """A proxy before a store, which sends only half of the body of some downloads, then closes the connection."""

    def __init__(self, url: str) -> None:
        self.to_break = 0
        """Downloads that will be broken off."""
        self.broken = 0
        store, proxy = url.removeprefix("http://"), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                connection = http.client.HTTPConnection(store, timeout=60)
                connection.request(self.command, self.path, headers=dict(self.headers))
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                breaks = proxy.to_break > 0 and "Range" in self.headers
                proxy.to_break -= breaks
                proxy.broken += breaks
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if breaks else body)
                self.close_connection = self.close_connection or breaks

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "BreakingProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process that asks a store."""
    return {**os.environ, **credentials(url)}
