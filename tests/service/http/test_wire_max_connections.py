"""More connections than are served: refused with a 503, but the probes and Prometheus are still answered."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.http.protocol import RESERVED_CONNECTIONS
from tests.support.live import Live, eventually, serving
from tests.support.wire import ASK, BODY, last_problem, read_all, statuses

MAX = 8


@pytest.fixture(scope="module")
def few(bundles: Path) -> Iterator[Live]:
    with serving(bundles=[bundles / "names"], max_connections=MAX) as running:
        yield running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections past the bound wait for their request as long as others: the test may be slow."""
    monkeypatch.setattr("service.http.protocol.RESERVED_TIMEOUT_S", 60.0)


@contextmanager
def silent(live: Live, number: int) -> Iterator[None]:
    """Keep connections open that send nothing."""
    connections = live.server.server_state.connections
    eventually(lambda: not connections)
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(socket.create_connection(live.connect_to(), timeout=60))
        eventually(lambda: len(connections) == number)
        yield
    eventually(lambda: not connections)


def refused(live: Live) -> float:
    return live.metric("bert_requests_rejected_total", reason="too_many_connections")


def test_as_many_connections_as_are_allowed_are_served(few: Live) -> None:
    with silent(few, MAX - 1):
        assert few.post("/ner", {"text": "angela"}).status == 200


def test_a_connection_past_the_bound_is_refused_without_a_handler(few: Live) -> None:
    before = refused(few)
    with silent(few, MAX):
        tasks = few.server.server_state.total_requests
        reply = few.post("/ner", {"text": "angela " * 200_000})  # sent whole before it reads
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert reply.json["type"] == "urn:bert-serve:too-many-connections"
        assert f"over {MAX} connections" in reply.json["detail"]
        assert reply.headers["retry-after"] == "1"
        assert few.server.server_state.total_requests == tasks
    assert refused(few) == before + 1
    assert few.post("/ner", {"text": "angela"}).status == 200


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics?name=x"])
def test_probes_and_metrics_are_answered_past_the_bound(few: Live, path: str) -> None:
    with silent(few, MAX):
        reply = few.get(path)
        assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert few.get(path).headers.get("connection") is None


def test_requests_behind_a_probe_are_not_served(few: Live) -> None:
    with silent(few, MAX), socket.create_connection(few.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n" + ASK + b"\r\n" + BODY)
        assert statuses(read_all(raw)) == [200]


def test_there_is_a_bound_for_probes_too(few: Live) -> None:
    before = refused(few)
    with silent(few, MAX + RESERVED_CONNECTIONS):
        with socket.create_connection(few.connect_to(), timeout=60) as raw:
            assert last_problem(read_all(raw))["status"] == 503  # before it asked for anything
        assert refused(few) == before + 1


def test_connections_past_the_bound_that_send_nothing_are_closed_soon(
    few: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those within it may be idle for keep_alive_s, 75."""
    monkeypatch.setattr("service.http.protocol.RESERVED_TIMEOUT_S", 0.5)
    with silent(few, MAX), ExitStack() as stack:
        more = [stack.enter_context(socket.create_connection(few.connect_to(), timeout=60)) for _ in range(5)]
        assert [read_all(raw) for raw in more] == [b""] * 5
        assert len(few.server.server_state.connections) == MAX
