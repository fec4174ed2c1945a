"""The bytes that all bodies of a process hold: bounded, counted once, and given back however a request ends."""

import gzip
import re
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from service.http.lifecycle import Service
from service.http.limits import FREE_BYTES, BodyBudget
from service.http.problems import ProblemError
from service.settings import ServeSettings
from tests.support.fleet import fleet, soon
from tests.support.live import Client, Live, eventually, serving
from tests.support.ndjson import TYPE
from tests.support.problems import TEXT, kind, rejected
from tests.support.slow import gated
from tests.support.wire import head_of, statuses

MAX_BODY, MAX_BODIES = 200_000, 500_000
HALF = b'{"text": "' + b"a" * 150_000
JSON, LINES = "application/json", TYPE
HEAD = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def small(bundles: Path) -> Iterator[Live]:
    limits: dict[str, Any] = {"max_body_bytes": MAX_BODY, "max_bodies_bytes": MAX_BODIES, "engine_slots": 1}
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


def test_what_is_held_in_all_is_bounded() -> None:
    budget = BodyBudget(1000, lambda: None)
    first, second = budget.share(), budget.share()
    first.hold(FREE_BYTES + 600)
    with pytest.raises(ProblemError, match="hold 600 bytes, and at most 1000 may be held"):
        second.hold(FREE_BYTES + 401)
    second.hold(FREE_BYTES + 400)
    first.hold(0)
    second.hold(FREE_BYTES + 1000)
    second.hold(0)
    assert budget.held == 0


def test_the_first_bytes_of_a_body_are_free() -> None:
    budget = BodyBudget(1000, lambda: None)
    budget.share().hold(FREE_BYTES + 1000)
    for _ in range(5):
        budget.share().hold(FREE_BYTES)
    assert budget.held == 1000


def test_one_read_of_a_socket_fits_however_small_the_largest_body_is(bundles: Path) -> None:
    async def unopened(*_: Any) -> Any:
        raise AssertionError("no model is needed")

    service = Service(ServeSettings(bundles=[bundles / "mood"], max_body_bytes=1000), unopened)
    service.bodies.share().hold(4 * 2**18)  # asyncio reads 256 KiB at once, in TLS too


def test_memory_is_released_once_when_most_of_what_was_held_is_free() -> None:
    released = list[int]()
    budget = BodyBudget(1000, lambda: released.append(budget.held))
    shares = [budget.share() for _ in range(10)]
    for share in shares:
        share.hold(FREE_BYTES + 100)
    for share in shares:
        share.hold(0)
    assert released == [100]
    for _ in range(100):  # too little to be worth it
        shares[0].hold(FREE_BYTES + 200)
        shares[0].hold(0)
    assert released == [100]


def begin(stack: ExitStack, client: Client, path: str, body: bytes, kind: str = JSON) -> socket.socket:
    """Send a request that lacks its end."""
    raw = stack.enter_context(socket.create_connection(client.connect_to(), timeout=60))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {MAX_BODY}\r\n\r\n"
    raw.sendall(head.encode() + body)
    return raw


def held(live: Live) -> int:
    return live.service.bodies.held


@pytest.mark.parametrize(
    ("path", "kind"), [("/classify", JSON), ("/tei/mood/predict", JSON), ("/classify", LINES)]
)
def test_bodies_without_an_end_are_refused_past_the_bound_and_small_ones_are_answered(
    small: Live, path: str, kind: str
) -> None:
    before = rejected(small, "bodies_full")
    with ExitStack() as stack:
        sent = [begin(stack, small, path, HALF, kind) for _ in range(5)]
        refused, _, _ = select.select(sent, [], [], 20)
        response = refused[0].recv(65536)
        headers, body = head_of(response)
        assert (headers["retry-after"], headers["connection"]) == ("1", "close")
        assert statuses(response) == [503]
        assert b"at most 500000 may be held (max_bodies_bytes)" in body
        assert held(small) <= MAX_BODIES
        assert small.post("/classify", TEXT).status == 200
    assert 1 <= rejected(small, "bodies_full") - before <= 3
    eventually(lambda: held(small) == 0)


def test_the_refusal_is_a_problem_with_a_type(small: Live) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            begin(stack, small, "/classify", HALF)
        eventually(lambda: held(small) > MAX_BODIES * 3 // 4)
        reply = small.post("/classify", HALF + b'"}')
        assert (reply.status, kind(reply)) == (503, "bodies-full")
    eventually(lambda: held(small) == 0)


def test_what_a_body_expands_to_is_held(small: Live) -> None:
    body = gzip.compress(HALF + b'", "truncate": true}')
    gzipped = {"content_encoding": "gzip", "content_type": JSON}
    with gated(small, "mood") as engine, ThreadPoolExecutor(5) as pool:
        requests = [pool.submit(small.post, "/classify", body, **gzipped) for _ in range(5)]
        eventually(lambda: sum(each.done() for each in requests) == 2)
        engine.gate.set()
        assert sorted(each.result().status for each in requests) == [200, 200, 200, 503, 503]
    eventually(lambda: held(small) == 0)


def test_bytes_that_wait_behind_a_running_request_are_held(small: Live) -> None:
    first, second = HEAD % 18 + b'{"text": "a film"}', HEAD % len(HALF) + HALF
    with gated(small, "mood") as engine, ExitStack() as stack:
        for _ in range(8):
            raw = stack.enter_context(socket.create_connection(small.connect_to(), timeout=60))
            raw.sendall(first + second)
        eventually(lambda: held(small) > MAX_BODIES // 2)
        engine.gate.set()
    eventually(lambda: held(small) == 0)


def test_a_body_that_its_handler_has_read_is_counted_once(small: Live) -> None:
    body = HALF + b'", "truncate": true}'
    with gated(small, "mood") as engine, ThreadPoolExecutor(1) as pool:
        request = pool.submit(small.post, "/classify", body)
        eventually(lambda: engine.batches > 0)
        assert held(small) == len(body) - FREE_BYTES
        engine.gate.set()
        assert request.result().status == 200
    eventually(lambda: held(small) == 0)


def test_a_refused_head_is_not_held_while_its_connection_stays_open(small: Live) -> None:
    with socket.create_connection(small.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * MAX_BODY)
        assert statuses(raw.recv(65536)) == [431]
        assert small.server.server_state.connections
        assert held(small) == 0


ENDS: dict[str, Callable[[Live], object]] = {
    "answered": lambda live: live.post("/tokenize", HALF[:60_000] + b'"}'),
    "malformed": lambda live: live.post("/classify", HALF),
    "too large": lambda live: live.post("/classify", HALF * 2),
    "not gzip": lambda live: live.post("/classify", HALF, content_encoding="gzip"),
    "late": lambda live: live.post("/classify", HALF + b'", "truncate": true}', x_timeout_ms="1"),
    "lines": lambda live: live.post("/tokenize", HALF[:60_000] + b'"}\n', content_type=LINES),
    "a long line": lambda live: live.post("/tokenize", HALF * 2 + b"\n", content_type=LINES),
    "an unknown path": lambda live: live.post("/nothing", HALF),
    "a path that reads no body": lambda live: live.post("/health/live", HALF),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_held_after_the_end_of_a_request(small: Live, end: str) -> None:
    ENDS[end](small)
    eventually(lambda: held(small) == 0)


def test_the_memory_of_a_frontend_is_bounded_and_given_back(bundles: Path) -> None:
    """100 bodies of 1 MB that never end, of which 8 MB may be held."""
    limits = ("--max-body-bytes", str(2**20), "--max-bodies-bytes", str(2**23))
    with fleet("--bundles", str(bundles / "mood"), *limits, frontends=1) as running, ExitStack() as stack:
        (frontend,) = running.frontends
        running.post("/classify", TEXT)
        before = memory_kib(frontend, "VmRSS")
        for _ in range(100):
            raw = stack.enter_context(socket.create_connection(running.connect_to(), timeout=60))
            raw.sendall(HEAD % 2**20 + b"a" * (2**20 - 1))
        assert running.get("/health/live").status == 200
        assert running.metric("bert_requests_rejected_total", reason="bodies_full") > 80
        stack.close()
        soon(lambda: running.metric("bert_open_connections") <= 1)
        assert memory_kib(frontend, "VmHWM") - before < 32 * 1024
        soon(lambda: memory_kib(frontend, "VmRSS") - before < 8 * 1024)


def memory_kib(pid: int, name: str) -> int:
    """Return a line of a process's status."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])
