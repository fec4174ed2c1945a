"""What bounds a request of many lines: queue, deadlines, clients that do not read or leave, and the service's end."""

import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.http.streams import line_stream, spool
from service.scheduling.fair_queue import Throughput
from tests.support.fleet import fleet, kill
from tests.support.live import Live, eventually, serving
from tests.support.ndjson import TYPE, kinds, lines_of, opened, post_lines, rounded
from tests.support.problems import TEXT, kind, rejected
from tests.support.slow import gated

GOOD = {"text": "a film"}
LONG = {"text": ["a film in munich " * 6] * 5}
BODY_MS, ANSWER_MS = 2500, 2500
"""How late the tests themselves may be on a busy machine, where they keep a stream alive."""


@pytest.fixture(scope="module")
def small(bundles: Path) -> Iterator[Live]:
    """A service with small limits and one engine slot."""
    limits: dict[str, Any] = {
        "max_queue_tokens": 512,
        "request_timeout_ms": 60_000,
        "body_timeout_ms": BODY_MS,
        "answer_timeout_ms": ANSWER_MS,
        "stream_spool_bytes": 2**20,
        "engine_slots": 1,
        "batch_tokens": 32,
    }
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


def is_idle(live: Live) -> bool:
    """Tell whether nothing of any request is left."""
    names = ("bert_requests_in_flight", "bert_queue_tokens", "bert_queue_texts")
    return all(live.metric(name) == 0 for name in names) and live.loaded.in_flight._tokens == 0


def test_a_line_that_finds_the_queue_full_is_tried_again(small: Live) -> None:
    before = rejected(small, "queue_full")
    with gated(small, "mood") as engine, ThreadPoolExecutor(8) as pool:
        first = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        others = [pool.submit(small.post, "/classify", LONG) for _ in range(3)]
        eventually(lambda: small.metric("bert_queue_texts") == 15)
        assert small.post("/classify", LONG).status == 429
        lines = pool.submit(post_lines, small, "/classify", lines_of(LONG, TEXT))
        time.sleep(0.3)
        assert not lines.done()
        engine.gate.set()
        assert [len(each["results"]) for each in lines.result()] == [5, 1]
        assert [each.result().status for each in (first, *others)] == [200] * 4
    assert rejected(small, "queue_full") == before + 1
    eventually(lambda: is_idle(small))


def test_a_line_that_would_be_late_is_tried_again_until_it_would_not(
    small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gated(small, "mood") as engine, ThreadPoolExecutor(8) as pool:
        first = pool.submit(small.post, "/classify", TEXT)
        eventually(lambda: engine.batches == 1)
        slow = dict(small.scheduler.queue.throughput) | {
            small.loaded.registry.models["mood"].id: Throughput(0.0, 10.0, 32)
        }
        monkeypatch.setattr(small.scheduler.queue, "throughput", slow)
        assert kind(small.post("/classify", TEXT)) == "queue-full"
        lines = pool.submit(post_lines, small, "/classify", lines_of(TEXT))
        time.sleep(0.2)
        monkeypatch.undo()
        engine.gate.set()
        assert "results" in lines.result()[0]
        assert first.result().status == 200


def test_a_line_that_can_never_wait_is_refused(small: Live) -> None:
    found = post_lines(small, "/ner", lines_of(GOOD, {"text": "a " * 900}, GOOD))
    assert kinds(found) == [(2, "request-too-large")]


def test_each_line_has_its_own_deadline(small: Live) -> None:
    with gated(small, "mood") as engine:
        found = post_lines(small, "/classify", lines_of(GOOD, GOOD, {"text": 1}), x_timeout_ms="150")
        assert kinds(found) == [(1, "deadline-exceeded"), (2, "deadline-exceeded"), (3, "invalid-request")]
        engine.gate.set()
    eventually(lambda: is_idle(small))
    with opened(small, "/classify", x_timeout_ms="2000") as request:
        for _ in range(3):
            request.send(lines_of(GOOD))
            assert "results" in request.line()
            time.sleep(0.8)


def test_a_body_that_stops_ends_the_stream_with_the_number_of_the_line_that_is_missing(small: Live) -> None:
    with opened(small, "/classify") as request:
        request.send(lines_of(GOOD, GOOD) + b'{"text": ')
        assert "results" in request.line()
        first, last = request.rest()
        assert "results" in first
        assert (last["line"], last["status"], last["type"]) == (3, 408, "urn:bert-serve:body-timeout")


def test_a_body_without_any_line_is_an_ordinary_408(small: Live) -> None:
    with opened(small, "/classify") as request:
        assert request.begin_reading().status == 408


def test_bytes_without_the_end_of_a_line_do_not_hold_a_stream(small: Live) -> None:
    with opened(small, "/classify") as request:
        request.send(lines_of(GOOD))
        assert "results" in request.line()
        began, response = time.monotonic(), request.connection.sock
        while not select.select([response], [], [], 0.2)[0] and time.monotonic() - began < 60:
            request.send(b" ")
        assert kinds(request.rest()) == [(2, "body-timeout")]


def test_blank_lines_hold_a_stream(small: Live) -> None:
    with opened(small, "/classify") as request:
        for _ in range(11):
            request.send(b"\n")
            time.sleep(BODY_MS / 10_000)
        request.send(lines_of(GOOD))
        request.end()
        assert ["results" in each for each in request.rest()] == [True]


def test_a_client_that_waits_for_its_answers_is_not_idle(small: Live) -> None:
    with gated(small, "mood") as engine, opened(small, "/classify") as request:
        request.send(lines_of(GOOD))
        time.sleep(1.2 * BODY_MS / 1000)
        engine.gate.set()
        assert "results" in request.line()
        request.send(lines_of(GOOD))
        request.end()
        assert len(request.rest()) == 1


def test_a_client_whose_lines_wait_for_another_stream_is_not_idle(small: Live) -> None:
    with (
        gated(small, "mood") as engine,
        opened(small, "/classify") as other,
        opened(small, "/classify") as mine,
    ):
        other.send(lines_of(*[GOOD] * 500))
        eventually(lambda: bool(small.loaded.in_flight._waiting))
        mine.send(lines_of(GOOD))
        time.sleep(1.2 * BODY_MS / 1000)
        engine.gate.set()
        assert "results" in mine.line()
        other.end()
        assert len(other.rest()) == 500


def test_a_stream_ends_after_its_time(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], stream_timeout_ms=600) as live:
        with opened(live, "/classify") as request:
            found = list[Any]()
            while not kinds(found):
                request.send(lines_of(GOOD))
                found.append(request.line())
                time.sleep(0.05)
            assert (found[-1]["line"], found[-1]["status"]) == (len(found), 504)
        assert live.post("/classify", GOOD).status == 200


def test_a_body_that_is_not_http_ends_the_stream_after_its_lines(small: Live) -> None:
    with opened(small, "/classify") as request:
        request.send(lines_of(GOOD, GOOD))
        request.connection.send(b"no chunk\r\n")
        *found, last = request.rest()
        assert ["results" in each for each in found] == [True, True]
        assert (last["line"], last["type"]) == (3, "urn:bert-serve:malformed-http")


def test_a_client_that_leaves_takes_its_lines_along(small: Live) -> None:
    before = rejected(small, "client_gone")
    with gated(small, "mood") as engine:
        with opened(small, "/classify") as request:
            request.send(lines_of(*[GOOD] * 300))
            eventually(lambda: engine.batches == 1 and small.metric("bert_queue_texts") > 2)
        eventually(lambda: rejected(small, "client_gone") == before + 1)
        eventually(lambda: small.metric("bert_queue_texts") == 0)
        engine.gate.set()
    eventually(lambda: is_idle(small))
    assert engine.batches == 1


def test_a_client_that_sends_for_long_before_it_reads_is_waited_for(
    small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its responses fill all buffers, and wait for longer than answer_timeout_ms."""
    monkeypatch.setattr(spool, "MEMORY_BYTES", 2**16)
    lines = lines_of(*[{"text": ["a film"] * 100}] * 8)
    count = 0
    with opened(small, "/tokenize") as request:
        until = time.monotonic() + 2 * ANSWER_MS / 1000
        while time.monotonic() < until:
            request.send(lines)
            count += 8
            time.sleep(0.05)
        request.end()
        found = request.rest()
    assert (len(found), kinds(found)) == (count, [])


def test_a_client_that_never_reads_is_given_up(small: Live, caplog: pytest.LogCaptureFixture) -> None:
    """It sends more than can wait, so it is blocked, and so would be a service that waited for it."""
    lines = lines_of(*[{"text": ["a film"] * 100}] * 8)
    sent = 0
    with opened(small, "/tokenize") as request, pytest.raises(OSError) as cut:
        while True:
            request.send(lines)
            sent += len(lines)
            assert sent < 2**28
    assert not isinstance(cut.value, TimeoutError), "the client's own, of a minute"
    eventually(lambda: is_idle(small))
    assert any("stream_spool_bytes" in record.message for record in caplog.records)


def test_without_room_for_a_file_the_lines_before_are_answered(
    small: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with gated(small, "mood") as engine, ThreadPoolExecutor(1) as pool:
        half = b'{"text": "' + b"a" * 1_000_000
        lines = pool.submit(post_lines, small, "/classify", lines_of(*[GOOD] * 100) + half)
        eventually(lambda: engine.batches == 1)
        time.sleep(0.2)
        engine.gate.set()
        *found, last = lines.result()
    assert len(found) == 100
    assert (last["line"], last["status"], last["type"]) == (101, 507, "urn:bert-serve:no-room")


def test_a_service_that_stops_answers_what_is_in_work_and_says_where_it_ended(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"]) as live, opened(live, "/classify") as request:
        with gated(live, "mood") as engine:
            request.send(lines_of(*[GOOD] * 5))
            eventually(lambda: engine.batches >= 1)
            live.server.handle_exit(signal.SIGTERM, None)
            eventually(live.service.is_stopping)
            time.sleep(2.5 * line_stream.WATCH_S)
            request.send(lines_of(GOOD))
            engine.gate.set()
        *found, last = request.rest()
        assert ["results" in each for each in found] == [True] * (last["line"] - 1)
        assert last["line"] == 6
        assert (last["status"], last["type"]) == (503, "urn:bert-serve:not-ready")


def test_memory_stays_flat(bundles: Path) -> None:
    """4,000 lines with 40 MB of responses, of which the client reads none until all is sent."""
    body = lines_of(*[{"text": "a film in munich " * 60}] * 4_000)
    with serving(bundles=[bundles / "meaning"]) as live:
        post_lines(live, "/tokenize", body[: len(body) // 20])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with opened(live, "/tokenize") as request:
            for start in range(0, len(body), 2**16):
                request.send(body[start : start + 2**16])
            request.end()
            time.sleep(1)
            response, count, size = request.begin_reading(), 0, 0
            while line := response.readline():
                count, size = count + 1, size + len(line)
        assert (count, size > 40_000_000) == (4_000, True)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 24_000, "KiB: the test's own process, with client and service"


def test_ordinary_requests_are_answered_beside_a_stream(small: Live) -> None:
    with opened(small, "/classify") as request:
        sending = threading.Thread(target=request.send, args=(lines_of(*[GOOD] * 3000),))
        sending.start()
        request.line()
        for _ in range(5):
            assert small.post("/classify", TEXT).status == 200
        sending.join()
        request.end()
        assert len(request.rest()) == 2999


def test_a_request_after_a_stream_is_answered_on_its_connection(small: Live) -> None:
    body = lines_of(GOOD)
    head = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(small.connect_to(), timeout=60) as raw:
        raw.sendall((head % (TYPE.encode(), len(body)) + body) * 2)
        raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = b""
        while data := raw.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200 ") == 3
    assert received.count(b'"results"') == 2


@pytest.mark.slow
def test_the_end_of_the_engine_process_costs_no_line(bundles: Path) -> None:
    body = lines_of(*[{"text": ["a film in munich"] * 50}] * 400)
    with fleet("--bundles", str(bundles / "mood"), frontends=1) as running, ThreadPoolExecutor(1) as pool:
        alone = running.post("/classify", body.splitlines()[0]).json
        with opened(running, "/classify") as request:
            sending = pool.submit(request.send, body)
            first = request.line()
            kill(running.engine)
            sending.result()
            request.end()
            found = [first, *request.rest()]
        assert len(found) == 400
        assert all(rounded(each) == rounded(alone) for each in found)
        assert running.metric("bert_engine_restarts_total") == 1
