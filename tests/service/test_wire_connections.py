"""What happens below HTTP's requests: heads without an end, clients that do not read, what is not HTTP at all."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.protocol import MAX_HEAD_BYTES
from tests.service.live import Live, eventually, serving


@pytest.fixture(scope="module")
def hasty(bundles: Path) -> Iterator[Live]:
    """A service that does not wait long for a client to read."""
    with serving(bundles=[bundles / "names"], answer_timeout_ms=300) as running:
        yield running


def read_all(raw: socket.socket) -> bytes:
    found = b""
    while chunk := raw.recv(65536):
        found += chunk
    return found


def head_of(answer: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, body


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nx: ", b"GET /"], ids=["lines", "a line", "path"]
)
def test_a_head_without_an_end_is_refused(live: Live, start: bytes) -> None:
    part = b"a" * 1000 if not start.endswith(b"\r\n") else b"x-many: 1\r\n" * 100
    with socket.create_connection(live.connect_to(), timeout=20) as raw:
        raw.sendall(start)
        for _ in range(MAX_HEAD_BYTES // 1000):
            raw.sendall(part)
        time.sleep(0.2)
        try:
            for _ in range(20):
                raw.sendall(part)
            answer = read_all(raw)
        except (ConnectionResetError, BrokenPipeError):
            return  # refused and closed while this still wrote
    assert answer.startswith(b"HTTP/1.1 431 ")
    headers, body = head_of(answer)
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["request_id"] == headers["x-request-id"]


def test_a_head_within_the_limit_and_a_large_body_after_it_are_read(live: Live) -> None:
    reply = live.post("/ner", {"text": "angela " * 20_000}, x_long="a" * (MAX_HEAD_BYTES // 2))
    assert reply.status == 200


def test_a_client_that_asks_whether_to_go_on_is_told(live: Live) -> None:
    body = b'{"text": "angela"}'
    head = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(live.connect_to(), timeout=20) as raw:
        raw.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert raw.recv(1000).startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_an_answers_head_and_body_leave_together(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=20) as raw:
        for _ in range(20):
            raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert raw.recv(10_000).endswith(b'{"status":"live"}')


def test_an_answer_without_a_body_has_its_head_and_the_next_follows(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=20) as raw:
        asked = b"HEAD /health/live HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
        raw.sendall(b"".join(asked) + b"connection: close\r\n\r\n")
        first, second, body = read_all(raw).split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ") and second.startswith(b"HTTP/1.1 200 ")
    assert body == b'{"status":"live"}'


def test_trailers_without_an_end_are_refused(live: Live) -> None:
    head = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(live.connect_to(), timeout=20) as raw, pytest.raises(OSError):
        raw.sendall(head + b"2\r\n{}\r\n0\r\n")
        for _ in range(10_000):
            raw.sendall(b"x-many: 1\r\n" * 100)
    eventually(lambda: live.metric("bert_requests_in_flight") == 0)


def test_what_is_not_http_gets_a_problem_with_an_id(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=20) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_all(raw)
    headers, body = head_of(answer)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert (problem["type"], problem["request_id"]) == (
        "urn:bert-serve:malformed-http",
        headers["x-request-id"],
    )


def test_a_client_that_does_not_read_its_answers_loses_its_connection(hasty: Live) -> None:
    body = json.dumps(
        {"text": "a " * 100_000}
    ).encode()  # 6 MB of answer: more than the system's buffers hold
    request = (
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with raw:
        raw.settimeout(20)
        raw.connect(hasty.connect_to())
        raw.sendall(request % len(body) + body)
        raw.sendall(request % len(body) + body)
        eventually(lambda: hasty.metric("bert_requests_in_flight") > 0)
        eventually(lambda: not hasty.server.server_state.connections, timeout_s=15)
        eventually(lambda: hasty.metric("bert_requests_in_flight") == 0)


def test_a_client_that_reads_gets_a_large_answer_whole(hasty: Live) -> None:
    reply = hasty.post("/tokenize", {"text": "angela " * 20_000})
    assert len(reply.json["results"][0]["tokens"]) == 20_002
