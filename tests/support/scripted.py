"""An HTTP server that answers what a test wrote down, one reply for each request."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Scripted:
    """A reply: a status with headers and a body, after a while; or a connection that is cut."""

    status: int = 200
    body: object = ""
    """Anything but bytes is sent as JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    cut: bool = False
    """True if the connection ends in the middle of the body."""
    drip_s: float = 0.0
    """Wait before each byte of the body."""


@dataclass
class Script:
    """The replies to come, of which the last is repeated, and the requests that came."""

    replies: list[Scripted]
    url: str = ""
    requests: list[tuple[float, dict[str, str], Any]] = field(default_factory=list)
    """Of each request: when it came, its headers with lower-case names, its JSON."""
    ports: set[int] = field(default_factory=set)
    """The other ends of the connections."""

    def next(self) -> Scripted:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def scripted(*replies: Scripted) -> Iterator[Script]:
    """Serve the replies until the block ends."""
    script = Script(list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            script.ports.add(self.client_address[1])
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.requests.append((time.monotonic(), headers, json.loads(body or b"null")))
            self.reply(script.next())

        do_GET = do_POST

        def reply(self, reply: Scripted) -> None:
            time.sleep(reply.after_s)
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"content-length": str(len(body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for byte in body if reply.drip_s else b"":
                time.sleep(reply.drip_s)
                self.wfile.write(bytes([byte]))
            self.wfile.write(body[: len(body) // 2] if reply.cut else b"" if reply.drip_s else body)
            self.close_connection = reply.cut

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that left
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
