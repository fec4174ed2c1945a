"""Limits over a real socket: size, time, queue, key, readiness; and that nothing leaks when clients leave."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.scheduling.fair_queue import Throughput
from service.scheduling.scheduler import SUSPECT_AFTER
from tests.support.live import Live, eventually, serving
from tests.support.problems import TEXT, kind, rejected
from tests.support.slow import gated


@pytest.fixture(scope="module")
def small(bundles: Path) -> Iterator[Live]:
    """A service with small limits and one engine slot."""
    limits: dict[str, Any] = {
        "max_body_bytes": 2000,
        "max_texts_per_request": 5,
        "max_queue_tokens": 512,
        "request_timeout_ms": 60_000,
        "engine_slots": 1,
        "batch_tokens": 32,
        "ready_when": "all",
    }
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as threads:
        yield threads


def is_idle(live: Live) -> bool:
    """Tell whether no gauge shows anything left over."""
    names = ("bert_requests_in_flight", "bert_queue_tokens", "bert_queue_texts")
    return all(live.metric(name) == 0 for name in names)


def test_a_body_over_the_limit_is_refused_by_its_declared_length(small: Live) -> None:
    before = rejected(small, "too_large")
    reply = small.post("/ner", {"text": "a" * 2000})
    assert (reply.status, kind(reply)) == (413, "body-too-large")
    assert "2000" in reply.json["detail"]
    assert rejected(small, "too_large") == before + 1


def test_a_body_over_the_limit_is_refused_while_it_streams_without_a_length(small: Live) -> None:
    connection = small.connect()
    chunks = (b"[" + b" " * 500 for _ in range(100))
    connection.request("POST", "/ner", chunks, {"content-type": "application/json"}, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert response.getheader("content-type") == "application/problem+json"
    connection.close()


def test_a_chunked_body_within_the_limit_is_read(small: Live) -> None:
    connection = small.connect()
    body = iter([b'{"te', b'xt": "a fi', b'lm"}'])
    connection.request("POST", "/ner", body, {"content-type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_body_that_does_not_arrive_is_given_up(bundles: Path) -> None:
    with serving(bundles=[bundles / "names"], body_timeout_ms=300) as hasty:
        with socket.create_connection(hasty.connect_to(), timeout=60) as raw:
            raw.sendall(
                b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{"
            )
            assert raw.recv(1000).startswith(b"HTTP/1.1 408 ")
        eventually(lambda: is_idle(hasty))


def test_a_body_that_does_not_arrive_by_the_deadline_is_given_up_then(small: Live) -> None:
    before, began = rejected(small, "deadline"), time.monotonic()
    with closing(small.connect()) as connection:
        connection.putrequest("POST", "/ner")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "20")
        connection.putheader("x-timeout-ms", "100")
        connection.endheaders(b"{")
        response = connection.getresponse()
        assert time.monotonic() - began >= 0.1
        assert (response.status, response.getheader("content-type")) == (504, "application/problem+json")
        problem = json.loads(response.read())
    assert problem["type"] == "urn:bert-serve:deadline-exceeded"
    assert problem["detail"] == "no answer within 100 ms"
    assert rejected(small, "deadline") == before + 1
    eventually(lambda: is_idle(small))


def test_too_many_texts_are_refused_with_the_limit(small: Live) -> None:
    reply = small.post("/ner", {"text": ["a"] * 6})
    assert reply.status == 422
    assert "6 texts; a request may have 5" in reply.json["detail"]
    reply = small.post("/similarity", {"text": "a", "candidates": ["a"] * 5})
    assert reply.status == 422


def test_a_request_larger_than_the_whole_queue_is_told_that_it_never_fits(small: Live) -> None:
    reply = small.post("/ner", {"text": "a " * 900})
    assert (reply.status, kind(reply)) == (413, "request-too-large")
    assert "512" in reply.json["detail"]
    assert "retry-after" not in reply.headers
    eventually(lambda: is_idle(small))


def test_a_full_queue_refuses_at_once_and_whole_and_says_when_to_come_back(
    small: Live, pool: ThreadPoolExecutor
) -> None:
    before = rejected(small, "queue_full")
    with gated(small, "mood") as engine:
        running = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        waiting = [
            pool.submit(small.post, "/classify", {"text": ["a film in munich " * 6] * 5}) for _ in range(3)
        ]
        eventually(lambda: small.metric("bert_queue_texts") == 15)
        tokens = small.metric("bert_queue_tokens")
        start = time.monotonic()
        reply = small.post("/classify", {"text": ["a film in munich " * 6] * 5})
        assert time.monotonic() - start < 30, "long before its deadline"
        assert (reply.status, kind(reply)) == (429, "queue-full")
        assert int(reply.headers["retry-after"]) >= 1
        assert small.metric("bert_queue_tokens") == tokens == 15 * 26
        engine.gate.set()
        assert [future.result().status for future in (running, *waiting)] == [200] * 4
    assert rejected(small, "queue_full") == before + 1
    eventually(lambda: is_idle(small))


def test_what_would_be_late_is_refused_at_once_and_says_when_to_come_back(
    small: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = small.scheduler.queue.throughput
    with gated(small, "mood") as engine:
        running = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        monkeypatch.setitem(
            speeds, small.loaded.registry.models["mood"].id, Throughput(0.0, token_s=10.0, budget=32)
        )
        start = time.monotonic()
        reply = small.post("/classify", TEXT, x_timeout_ms="60000")
        assert time.monotonic() - start < 30, "long before its deadline"
        assert (reply.status, kind(reply)) == (429, "queue-full")
        assert reply.headers["retry-after"] == "320"  # until the batch that runs should be over
        assert "would take about 380.0 s" in reply.json["detail"]
        engine.gate.set()
        assert running.result().status == 200
    eventually(lambda: is_idle(small))
    # What was refused is believed for a second or two.
    eventually(lambda: small.post("/classify", TEXT).status == 200)


def test_a_deadline_is_kept_and_the_work_taken_back(small: Live, pool: ThreadPoolExecutor) -> None:
    before = rejected(small, "deadline")
    with gated(small, "mood") as engine:
        running = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        start = time.monotonic()
        reply = small.post("/classify", TEXT, x_timeout_ms="150")
        assert 0.15 <= time.monotonic() - start < 30, "not the service's own, which is a minute"
        assert (reply.status, kind(reply)) == (504, "deadline-exceeded")
        assert reply.json["detail"] == "no answer within 150 ms"
        assert small.metric("bert_queue_tokens") == 0
        engine.gate.set()
        assert running.result().status == 200
        assert engine.batches == 1
    assert rejected(small, "deadline") == before + 1


def test_a_longer_deadline_than_the_services_own_is_not_granted(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], request_timeout_ms=300) as live, gated(live, "mood"):
        reply = live.post("/classify", TEXT, x_timeout_ms="999999999999999")
        assert reply.json["detail"] == "no answer within 300 ms"


def test_a_client_that_leaves_with_requests_in_line_takes_all_of_them_along(
    small: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn tells only the last of a connection's requests that nobody reads its answer."""
    before = rejected(small, "client_gone")
    body = b'{"text": "a film in munich"}'
    head = (
        f"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    with gated(small, "mood") as engine:
        with socket.create_connection(small.connect_to(), timeout=60) as raw:
            raw.sendall(head.encode() + b"\r\n\r\n" + body + b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            eventually(lambda: engine.batches == 1)
        eventually(lambda: rejected(small, "client_gone") == before + 1)
    eventually(lambda: is_idle(small))
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "nobody was answered"


def test_a_client_that_leaves_takes_its_queued_work_along(small: Live, pool: ThreadPoolExecutor) -> None:
    before = rejected(small, "client_gone")
    with gated(small, "mood") as engine:
        running = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        with socket.create_connection(small.connect_to(), timeout=60) as raw:
            body = b'{"text": "a film in munich"}'
            head = (
                "POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: "
                f"application/json\r\ncontent-length: {len(body)}"
            )
            raw.sendall(head.encode() + b"\r\n\r\n" + body)
            eventually(lambda: small.metric("bert_queue_texts") == 1)
        eventually(lambda: small.metric("bert_queue_texts") == 0)
        eventually(lambda: small.metric("bert_requests_in_flight") == 1)
        engine.gate.set()
        assert running.result().status == 200
        assert engine.batches == 1
    eventually(lambda: is_idle(small))
    assert rejected(small, "client_gone") == before + 1
    labels = {"endpoint": "/classify", "model": "mood", "status": "499"}
    assert small.settled_metric("bert_request_duration_seconds_count", **labels) >= 1


def test_an_engine_that_fails_answers_500_and_goes_on(small: Live, pool: ThreadPoolExecutor) -> None:
    with gated(small, "mood") as engine:
        engine.error = RuntimeError("the device is gone, with secrets in its message")
        engine.gate.set()
        reply = small.post("/classify", TEXT)
        assert (reply.status, kind(reply)) == (500, "internal")
        assert b"secrets" not in reply.body
        assert small.post("/ner", TEXT).status == 200
    assert small.post("/classify", TEXT).status == 200
    eventually(lambda: is_idle(small))


def test_a_model_that_keeps_failing_is_not_ready_until_it_answers_again(
    small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.lifecycle.PROBE_EVERY_S", 0.05)
    with gated(small, "mood") as engine:
        engine.error = RuntimeError("dead")
        engine.gate.set()
        for _ in range(SUSPECT_AFTER):
            assert small.post("/classify", TEXT).status == 500
        eventually(lambda: small.get("/health/ready?model=mood").status == 503)
        reply = small.get("/health/ready?model=mood")
        assert kind(reply) == "not-ready"
        assert "mood" in reply.json["detail"]
        assert small.get("/health/live").status == 200
        assert small.metric("bert_model_ready", model="mood") == 0
    eventually(lambda: small.get("/health/ready?model=mood").status == 200)
    assert small.metric("bert_model_ready", model="mood") == 1


def test_texts_that_an_engine_chokes_on_do_not_take_the_service_out(
    small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.lifecycle.PROBE_EVERY_S", 0.0)
    with gated(small, "mood") as engine:
        engine.gate.set()
        engine.error = RuntimeError("this text")
        for _ in range(SUSPECT_AFTER):
            assert small.post("/classify", TEXT).status == 500
        engine.error = None
        for _ in range(5):
            assert small.get("/health/ready").status == 200
        eventually(lambda: small.loaded.scheduler.suspects() == set())


def test_an_engine_that_hangs_makes_the_service_not_ready(
    small: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.scheduler, "stuck_after_s", lambda _: 0.05)
    with gated(small, "mood") as engine:
        waiting = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: small.get("/health/ready").status == 503)
        assert "stuck" in small.get("/health/ready").json["detail"]
        engine.gate.set()
        assert waiting.result().status == 200
    eventually(lambda: small.get("/health/ready").status == 200)


def test_a_sentence_does_not_wait_behind_a_long_document(small: Live, pool: ThreadPoolExecutor) -> None:
    with gated(small, "mood") as blocked, gated(small, "names") as names:
        names.gate.set()
        first = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: blocked.batches == 1)
        document = pool.submit(small.post, "/ner", {"text": "a film in munich and " * 60})
        eventually(lambda: small.metric("bert_queue_texts") > 10)
        windows = small.metric("bert_queue_texts")
        sentence = pool.submit(small.post, "/ner", TEXT)
        eventually(lambda: small.metric("bert_queue_texts") == windows + 1)
        blocked.gate.set()
        assert document.result().status == sentence.result().status == first.result().status == 200
        assert names.tokens[0] == 6 < min(names.tokens[1:])
