"""A collector of OpenTelemetry (OTLP over HTTP) that keeps the spans that it gets."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    """Attributes of the process that sent each span."""
    requests: int = 0
    status: int = 200
    """What it answers."""
    answers: threading.Event = field(default_factory=threading.Event)
    """Answers only while this is set."""

    def trace(self, trace_id: str) -> dict[str, Span]:
        """Return the spans of a trace by name."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}

    def receive(self, path: str, body: bytes) -> bytes:
        assert path == "/v1/traces"
        self.requests += 1
        self.answers.wait(120)
        if self.status == 200:
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                found = [span for scope in sent.scope_spans for span in scope.spans]
                self.resources += [attributes(sent.resource)] * len(found)
                self.spans += found
        answer: bytes = ExportTraceServiceResponse().SerializeToString()
        return answer


def attributes(item: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in item.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
            answer = collector.receive(self.path, body)
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            with suppress(ConnectionError):  # the sender has ended
                self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    collector.answers.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.answers.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
