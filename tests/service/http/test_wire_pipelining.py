"""Requests sent without waiting for responses: a bounded number is accepted, and the rest costs nobody else time."""

import socket
import time

import pytest

from service.http.protocol import MAX_PIPELINED
from tests.support.live import Live, eventually
from tests.support.slow import gated
from tests.support.wire import ASK, BODY, GET, last_problem, read_all, statuses

CHUNKED = (
    b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


def test_as_many_pipelined_requests_as_may_wait_are_answered(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        last = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        raw.sendall(GET * MAX_PIPELINED + last)
        assert statuses(read_all(raw)) == [200] * (MAX_PIPELINED + 1)


def test_more_pipelined_requests_are_refused_after_the_accepted_ones_are_answered(live: Live) -> None:
    before = live.metric("bert_requests_rejected_total", reason="too_many_pipelined")
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(GET * 6_800)  # 255 KB
        received = read_all(raw)
    assert statuses(received) == [200] * (MAX_PIPELINED + 1) + [429]
    assert last_problem(received)["type"] == "urn:bert-serve:too-many-pipelined"
    assert live.metric("bert_requests_rejected_total", reason="too_many_pipelined") == before + 1


def test_what_is_malformed_behind_a_request_is_told_after_its_answer(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(ASK + b"\r\n" + BODY + b"\x16\x03\x01 hello\r\n\r\n")
        received = read_all(raw)
    assert statuses(received) == [200, 400]
    assert last_problem(received)["type"] == "urn:bert-serve:malformed-http"


@pytest.mark.parametrize("before", [b"", GET, GET + ASK + b"\r\n" + BODY])
def test_a_target_that_is_no_path_is_told_in_turn(live: Live, before: bytes) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(before + b"GET http://x:99999/ HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        received = read_all(raw)
    assert statuses(received) == [200] * before.count(b"HTTP/1.1") + [400]
    assert last_problem(received)["detail"] == "this is not HTTP/1.1: the request's target is no path"


def test_a_malformed_chunk_is_told_in_turn(live: Live) -> None:
    for before in (b"", GET, GET + ASK + b"\r\n" + BODY):
        with socket.create_connection(live.connect_to(), timeout=60) as raw:
            raw.sendall(before + CHUNKED + b"2\r\n{}\r\nzz\r\n" + GET)
            received = read_all(raw)
        assert statuses(received) == [200] * before.count(b"HTTP/1.1") + [400]
        assert last_problem(received)["type"] == "urn:bert-serve:malformed-http"
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(CHUNKED + b"2\r\n{}\r\n")
        time.sleep(0.1)  # the handler waits for the rest
        raw.sendall(b"zz\r\n")
        assert statuses(read_all(raw)) == [400]


def test_a_chunk_that_is_malformed_after_the_answer_ends_the_connection(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(CHUNKED.replace(b"/ner", b"/nobody") + b"2\r\n{}\r\n")
        assert raw.recv(10_000).startswith(b"HTTP/1.1 404 ")
        raw.sendall(b"zz\r\n")
        assert read_all(raw) == b""


def test_a_client_that_leaves_with_a_full_pipeline_leaves_nothing_behind(live: Live) -> None:
    with gated(live, "names") as engine:
        with socket.create_connection(live.connect_to(), timeout=60) as raw:
            raw.sendall((ASK + b"\r\n" + BODY) * (MAX_PIPELINED + 1))
            eventually(lambda: engine.batches == 1)
        eventually(lambda: live.metric("bert_requests_in_flight") == 0)
    assert engine.batches == 1
