"""A proxy before an object store, which passes requests on, or cuts, delays or refuses what is answered."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PART = 2**16


@dataclass
class StoreProxy:
    """What the proxy does, and what it has seen."""

    url: str
    refuses: int = 0
    """Status of every answer, unless it is 0."""
    cut_left: int = 0
    """Answers that end after half of their body, the connection with them."""
    pause_s: float = 0.0
    """Seconds before each part of a body."""
    hangs: threading.Event = field(default_factory=threading.Event)
    """Answers nothing while it is set."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""

    def files(self) -> list[str]:
        """Return the names of the files that were sent since the last call, sorted."""
        asked, self.asked = self.asked, []
        return sorted(each.rpartition("/")[2] for each in asked if each.startswith("GET") and "?" not in each)


@contextmanager
def before(store: str) -> Iterator[StoreProxy]:
    """Run a proxy before the store at a URL until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.asked.append(f"{self.command} {self.path}")
            while state.hangs.is_set():
                time.sleep(0.05)
            if state.refuses:
                self.send_response(state.refuses)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = HTTPConnection(store.removeprefix("http://"), timeout=60)
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("date", "server", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.send_parts(content)

        do_HEAD = do_GET

        def send_parts(self, content: bytes) -> None:
            is_cut = len(content) > 1000 and state.cut_left > 0
            state.cut_left -= is_cut
            for start in range(0, len(content) // 2 if is_cut else len(content), PART):
                time.sleep(state.pause_s)
                self.wfile.write(
                    content[start : min(start + PART, len(content) // 2 if is_cut else len(content))]
                )
            self.close_connection = self.close_connection or is_cut

        def log_message(self, *arguments: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client was killed
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = StoreProxy(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        state.hangs.clear()
        server.shutdown()
        server.server_close()
