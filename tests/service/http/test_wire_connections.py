"""What happens below HTTP's requests: heads without an end, clients that do not read, what is not HTTP at all."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.http.protocol import MAX_HEAD_BYTES
from tests.support.live import Live, eventually, serving
from tests.support.slow import gated
from tests.support.wire import ASK, BODY, GET, head_of, read_all


@pytest.fixture(scope="module")
def hasty(bundles: Path) -> Iterator[Live]:
    """A service that waits neither long for a head nor for a client to read."""
    with serving(bundles=[bundles / "names"], answer_timeout_ms=1500, body_timeout_ms=500) as running:
        yield running


@pytest.fixture(scope="module")
def brief(bundles: Path) -> Iterator[Live]:
    """A service that keeps no idle connection for long."""
    with serving(bundles=[bundles / "names"], body_timeout_ms=60_000, keep_alive_s=2) as running:
        yield running


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nx: ", b"GET /"], ids=["lines", "a line", "path"]
)
def test_a_head_without_an_end_is_refused(live: Live, start: bytes) -> None:
    part = b"a" * 1000 if not start.endswith(b"\r\n") else b"x-many: 1\r\n" * 100
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(start)
        for _ in range(MAX_HEAD_BYTES // 1000):
            raw.sendall(part)
        time.sleep(0.2)
        for _ in range(20):
            raw.sendall(part)
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 431 ")
    headers, body = head_of(answer)
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["request_id"] == headers["x-request-id"]


@pytest.mark.parametrize("where", ["path", "header"])
def test_a_large_head_is_refused_though_its_end_arrives_with_it(live: Live, where: str) -> None:
    many = b"a" * (MAX_HEAD_BYTES + 1)
    request = (
        GET.replace(b" /", b" /" + many, 1) if where == "path" else GET[:-2] + b"x: " + many + b"\r\n\r\n"
    )
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(request)
        assert read_all(raw).startswith(b"HTTP/1.1 431 ")


def test_a_head_within_the_limit_and_a_large_body_after_it_are_read(live: Live) -> None:
    reply = live.post("/ner", {"text": "angela " * 20_000}, x_long="a" * (MAX_HEAD_BYTES // 2))
    assert reply.status == 200


def test_a_client_that_asks_whether_to_go_on_is_told(live: Live) -> None:
    body = b'{"text": "angela"}'
    head = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert raw.recv(1000).startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_an_answers_head_and_body_leave_together(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        for _ in range(20):
            raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert raw.recv(10_000).endswith(b'{"status":"live"}')


def test_an_answer_without_a_body_has_its_head_and_the_next_follows(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        asked = b"HEAD /health/live HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
        raw.sendall(b"".join(asked) + b"connection: close\r\n\r\n")
        first, second, body = read_all(raw).split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ") and second.startswith(b"HTTP/1.1 200 ")
    assert body == b'{"status":"live"}'


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_offer_to_speak_another_protocol_is_passed_over(live: Live, protocol: bytes) -> None:
    """As `curl --http2` and Java's client make it, with a body."""
    offer = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: "
        + protocol
        + b"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    )
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        for _ in range(2):
            raw.sendall(ASK + offer + BODY)
            assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")
        raw.sendall(ASK + offer)
        raw.sendall(BODY)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("cut", range(0, 41, 5))
def test_an_offer_that_arrives_in_two_segments_is_passed_over(live: Live, cut: int) -> None:
    """Cut within, before and after the line that makes the offer."""
    head = ASK + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    middle = head.index(b"Upgrade: h2c") - 20 + cut
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(head[:middle])
        time.sleep(0.02)
        raw.sendall(head[middle:] + BODY)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_an_offer_in_a_pipelined_request_is_passed_over(live: Live) -> None:
    offer = ASK + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + BODY
    last = ASK + b"Connection: close\r\n\r\n" + BODY
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(offer * 5 + last)
        assert read_all(raw).count(b"HTTP/1.1 200 ") == 6


def test_an_offer_in_a_body_or_a_path_is_left_as_it_is(live: Live) -> None:
    text = "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n angela"
    tokens = live.post("/tokenize?Upgrade:h2c", {"text": text}).json["results"][0]["tokens"]
    assert text[tokens[-2]["start"] : tokens[-2]["end"]] == "angela"


def test_connect_is_not_for_here(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(b"CONNECT elsewhere.example:443 HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n\x16\x03\x01")
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "host", [b"", b"Host: a\r\nHost: b\r\n", b"Host: a/b\r\n", b"Host: a, b\r\n"], ids=str
)
def test_a_request_that_does_not_name_one_host_is_malformed(live: Live, host: bytes) -> None:
    """RFC 9112, 3.2."""
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET /health/live HTTP/1.1\r\n" + host + b"\r\n")
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "Host" in json.loads(head_of(answer)[1])["detail"]


@pytest.mark.parametrize("host", [b"", b"a", b"a:80", b"[::1]:8000", b"a_b.example"])
def test_hosts_that_are_well_formed(live: Live, host: bytes) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 200 ")


def test_http_1_0_needs_no_host(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 200 ")


def test_a_connection_that_sends_nothing_is_closed(brief: Live) -> None:
    began = time.monotonic()
    with socket.create_connection(brief.connect_to(), timeout=60) as raw:
        assert raw.recv(100) == b""
    assert 1.8 < time.monotonic() - began < 30, "before the minute that a head may take"


@pytest.mark.parametrize("before", [b"", b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_connection_that_sends_line_ends_only_is_closed(brief: Live, before: bytes) -> None:
    began = time.monotonic()
    with socket.create_connection(brief.connect_to(), timeout=60) as raw:
        raw.sendall(before)
        if before:
            assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(OSError):
            while time.monotonic() - began < 30:
                raw.sendall(b"\r\n")
                time.sleep(0.1)
    assert time.monotonic() - began > 1.8


@pytest.mark.parametrize("start", [b"POST /ne", b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-ty"])
@pytest.mark.parametrize("before", [b"", ASK + b"\r\n" + BODY])
def test_a_head_that_does_not_arrive_is_given_up(hasty: Live, start: bytes, before: bytes) -> None:
    with socket.create_connection(hasty.connect_to(), timeout=60) as raw:
        if before:
            raw.sendall(before)
            assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        for byte in start[:-1]:
            raw.sendall(bytes([byte]))  # each byte would put off a timer that is set anew
        answer = read_all(raw)
    assert 0.4 < time.monotonic() - began < 30
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(head_of(answer)[1])["type"] == "urn:bert-serve:body-timeout"


def test_the_rest_of_a_request_that_was_answered_has_its_time_too(hasty: Live) -> None:
    head = (
        b"POST /nobody HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    )
    with socket.create_connection(hasty.connect_to(), timeout=60) as raw:
        raw.sendall(head + b"{")
        assert raw.recv(10_000).startswith(b"HTTP/1.1 404 ")
        with pytest.raises(OSError):
            for _ in range(100):
                raw.sendall(b" ")
                time.sleep(0.05)


def test_a_slow_head_behind_a_request_does_not_cut_its_answer(hasty: Live) -> None:
    with gated(hasty, "names") as engine, socket.create_connection(hasty.connect_to(), timeout=60) as raw:
        raw.sendall(ASK + b"\r\n" + BODY + b"GET / HT")
        eventually(lambda: engine.batches == 1)
        time.sleep(0.8)  # longer than a head may take
        engine.gate.set()
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_line_ends_between_requests_are_no_request(hasty: Live) -> None:
    with socket.create_connection(hasty.connect_to(), timeout=60) as raw:
        raw.sendall(ASK + b"\r\n" + BODY)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")
        raw.sendall(b"\r\n")
        time.sleep(0.7)
        raw.sendall(ASK + b"\r\n" + BODY)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_a_body_is_left_as_it_is_where_the_heads_end_was_cut(live: Live) -> None:
    body = b'{"text":\r\nUpgrade: x'
    head = ASK.replace(b"18", b"%d" % len(body))
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(head[:-1])
        time.sleep(0.05)
        raw.sendall(b"\n\r")
        time.sleep(0.05)
        raw.sendall(b"\n" + body)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 400 ")
        raw.sendall(ASK + b"\r\n" + BODY)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_trailers_without_an_end_are_refused(live: Live) -> None:
    head = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(head + b"2\r\n{}\r\n0\r\n")
        for _ in range(1000):
            raw.sendall(b"x-many: 1\r\n" * 100)
        assert read_all(raw).startswith(b"HTTP/1.1 431 ")
    eventually(lambda: live.metric("bert_requests_in_flight") == 0)


def test_what_is_not_http_gets_a_problem_with_an_id(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
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
    body = json.dumps({"text": "a " * 16_000}).encode()
    request = (
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with raw:
        raw.settimeout(60)
        raw.connect(hasty.connect_to())
        answered = hasty.server.server_state.total_requests
        for _ in range(16):  # 1 MB of answer each: more than the system's buffers hold
            raw.sendall(request % len(body) + body)
        eventually(lambda: hasty.metric("bert_requests_in_flight") > 0)
        eventually(lambda: not hasty.server.server_state.connections)
        eventually(lambda: hasty.metric("bert_requests_in_flight") == 0)
        assert hasty.server.server_state.total_requests < answered + 16


def test_a_client_that_reads_gets_a_large_answer_whole(hasty: Live) -> None:
    reply = hasty.post("/tokenize", {"text": "angela " * 16_000})
    assert len(reply.json["results"][0]["tokens"]) == 16_002
