"""A real S3 API on this machine (moto)."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process that asks a store."""
    return {**os.environ, **credentials(url)}
