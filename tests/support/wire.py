"""Requests and responses as bytes on a raw socket."""

import json
import socket

ASK = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 18\r\n"
"""A head that lacks its last line, so that a test can add headers."""
BODY = b'{"text": "angela"}'
GET = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"


def read_all(raw: socket.socket) -> bytes:
    """Read until the server closes its side."""
    found = b""
    while chunk := raw.recv(65536):
        found += chunk
    return found


def head_of(response: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers, names in lower case, and the body."""
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, body


def statuses(received: bytes) -> list[int]:
    """Return the status of each response."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def last_problem(received: bytes) -> dict[str, object]:
    """Return the problem that the last response tells before the connection is closed."""
    headers, body = head_of(received[received.rindex(b"HTTP/1.1 ") :])
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert problem["request_id"] == headers["x-request-id"]
    return dict(problem)
