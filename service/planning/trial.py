"""A service in processes of its own, and the CPU time that requests cost it."""

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

from bert.errors import ServiceError
from service.settings import ServeSettings

Serve = Callable[[ServeSettings], int]
CONNECTIONS = 32
"""Enough for full batches."""
PLAIN: dict[str, Any] = {
    **dict.fromkeys(
        ("uds", "admin_port", "ssl_certfile", "ssl_keyfile", "api_key", "api_keys_file", "max_queue_tokens")
    ),
    **{
        "host": "127.0.0.1",
        "log_format": "json",
        "log_level": "error",
        "sample_share": 0.0,
        "otel_endpoint": "",
    },
    "request_timeout_ms": 600_000,
}
"""Settings with which a client on this machine can ask, nothing is refused because of the load, and nothing is kept."""


def try_requests(
    settings: ServeSettings, serve: Serve, path: str, bodies: Iterable[str]
) -> tuple[float, list[bytes]]:
    """Send requests to a service, CONNECTIONS at once; return the CPU seconds of its processes, and the answers.

    Each has a connection of its own, as clients have that keep none. Raises ServiceError if the service does not start, or
    refuses a request.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    changed = settings.model_copy(update={**PLAIN, "port": port})
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(changed,))

    def ask(path: str, body: str | None = None) -> bytes:
        with closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST" if body else "GET", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        if response.status != 200:
            raise ServiceError(f"{path} answered {response.status}: {content.decode()}")
        return content

    def cpu_s() -> float:
        lines = ask("/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(b"process_cpu_seconds_total"))

    process.start()
    try:
        while process.is_alive():
            with suppress(OSError, ServiceError):
                ask("/health/ready")
                break
            time.sleep(0.1)
        else:
            raise ServiceError(f"the service that is measured ended with code {process.exitcode}")
        began_s = cpu_s()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            answers = list(pool.map(lambda body: ask(path, body), bodies))
        return cpu_s() - began_s, answers
    finally:
        process.terminate()
        process.join()
