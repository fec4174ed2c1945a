"""A proxy that serves another server under a path, as `location /bert/ { proxy_pass http://upstream/; }` of nginx does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.live import Client


@contextmanager
def under(prefix: str, upstream: Client) -> Iterator[Client]:
    """Serve `upstream` under `prefix` ("/bert") until the block ends; any other path is a 404."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            sent = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            reply = upstream.request(self.command, self.path.removeprefix(prefix), body or None, sent)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name not in ("date", "server", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Client(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
