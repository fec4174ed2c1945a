"""How connections end: a response that closes one arrives, and no client keeps one open for ever."""

import asyncio
import contextlib
import errno
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.http.lingering import LingeringProtocol
from tests.support.live import Live, eventually, serving
from tests.support.wire import GET, head_of, read_all, statuses

HEAD = b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
MIB = 2**20


@pytest.fixture(scope="module")
def strict(bundles: Path) -> Iterator[Live]:
    """A service that takes small bodies, and does not wait for long."""
    limits: dict[str, Any] = {
        "max_body_bytes": 2000,
        "body_timeout_ms": 500,
        "answer_timeout_ms": 300,
        "keep_alive_s": 3,
    }
    with serving(bundles=[bundles / "names"], **limits) as running:
        yield running


def protocols(live: Live) -> list[LingeringProtocol]:
    return [each for each in live.server.server_state.connections if isinstance(each, LingeringProtocol)]


def no_connections(live: Live) -> bool:
    return not live.server.server_state.connections


@pytest.mark.parametrize("size", [3 * MIB, 20 * MIB])
def test_a_client_that_sends_all_before_it_reads_sees_the_413(live: Live, size: int) -> None:
    """As Python's http.client does."""
    for _ in range(4):
        reply = live.post("/ner", b" " * size)
        assert (reply.status, reply.headers["connection"]) == (413, "close")
    eventually(lambda: no_connections(live))


def test_a_chunked_body_that_is_too_large_is_told_too(live: Live) -> None:
    connection = live.connect()
    parts = (b" " * 100_000 for _ in range(100))
    connection.request("POST", "/ner", parts, {"content-type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("status", [401, 404, 415])
def test_other_refusals_read_a_large_body_and_go_on(bundles: Path, live: Live, status: int) -> None:
    path, kind = (
        ("/nobody" if status == 404 else "/ner"),
        ("text/plain" if status == 415 else "application/json"),
    )
    with contextlib.ExitStack() as stack:
        if status == 401:
            live = stack.enter_context(serving(bundles=[bundles / "names"], api_key="long-enough"))
        connection = live.connect()
        stack.callback(connection.close)
        for _ in range(2):
            connection.request("POST", path, b" " * 20 * MIB, {"content-type": kind})
            response = connection.getresponse()
            assert response.status == status
            response.read()


def test_a_refused_client_is_told_at_once_that_nothing_follows(live: Live) -> None:
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(HEAD + b"content-length: 1000000000\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 413 ")
        assert not no_connections(live), "the other side is open for ten seconds"


@pytest.mark.parametrize("sends", ["nothing", "on"])
def test_a_refused_client_that_does_not_close_is_cut_off(strict: Live, sends: str) -> None:
    with socket.create_connection(strict.connect_to(), timeout=60) as raw:
        began = time.monotonic()
        raw.sendall(HEAD + b"content-length: 1000000000\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 413 ")
        with contextlib.suppress(OSError):
            while sends == "on" and time.monotonic() - began < 60:
                raw.sendall(b" ")
                time.sleep(0.05)
        eventually(lambda: no_connections(strict))
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"], ids=["closed", "kept"])
def test_what_is_read_for_nothing_is_bounded(
    live: Live, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    monkeypatch.setattr("service.http.lingering.MAX_DISCARDED_BYTES", MIB)
    head = HEAD.replace(b"application/json", kind) + b"content-length: 1000000000\r\n\r\n"
    with socket.create_connection(live.connect_to(), timeout=60) as raw, pytest.raises(OSError):
        raw.sendall(head)
        for _ in range(1000):
            raw.sendall(b" " * MIB)


def test_what_is_read_for_nothing_counts_for_each_request_by_itself(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.lingering.MAX_DISCARDED_BYTES", MIB)
    size = MIB * 3 // 4
    head = HEAD.replace(b"application/json", b"text/plain") + b"content-length: %d\r\n\r\n" % size
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        for _ in range(4):
            raw.sendall(head)
            assert raw.recv(65536).startswith(b"HTTP/1.1 415 ")
            raw.sendall(b" " * size)
        raw.sendall(GET)
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_answer_that_is_never_read_does_not_keep_its_connection(strict: Live) -> None:
    """What is left of it is under the mark from which uvloop tells that a client does not read."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(60)
        raw.connect(strict.connect_to())
        eventually(lambda: not no_connections(strict))
        state = strict.server.server_state
        (connection,) = state.connections
        while connection.transport.get_write_buffer_size() == 0:
            answered = state.total_requests
            raw.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
            eventually(lambda answered=answered: state.total_requests > answered)  # type: ignore[misc]
        eventually(lambda: no_connections(strict))


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
def test_a_request_whose_head_arrives_while_the_service_stops_is_answered(
    bundles: Path, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, tell = list[LingeringProtocol](), LingeringProtocol.shutdown

    def telling(connection: LingeringProtocol) -> None:
        tell(connection)
        told.append(connection)

    monkeypatch.setattr(LingeringProtocol, "shutdown", telling)
    with serving(bundles=[bundles / "names"]) as live, socket.create_connection(live.connect_to(), 60) as raw:
        raw.sendall(before + GET[:10])
        eventually(lambda: any(each._has_begun for each in protocols(live)))
        live.server.handle_exit(signal.SIGTERM, None)
        eventually(lambda: bool(told))
        raw.sendall(GET[10:])
        received = read_all(raw)
    assert statuses(received) == [200] * (1 + bool(before))
    assert head_of(received[received.rindex(b"HTTP/1.1 ") :])[0]["connection"] == "close"


class Listener:
    """A listening socket that fails in some accepts."""

    def __init__(self, listener: socket.socket, *errors: OSError) -> None:
        self.listener, self.errors = listener, list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)

    def accept(self) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.listener.accept()


@contextlib.contextmanager
def stopped_while_clients_wait(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, clients: int, *errors: OSError
) -> Iterator[list[socket.socket]]:
    """Stop a service while its event loop is busy and clients connect, which then wait in the backlog.

    `errors` are those of the first accepts.
    """
    waiting = list[socket.socket]()
    with contextlib.ExitStack() as stack, serving(bundles=[bundles / "names"]) as live:
        accept_last = live.server._accept_last

        def connect() -> None:
            for _ in range(clients):
                waiting.append(stack.enter_context(socket.create_connection(live.connect_to(), timeout=60)))
                waiting[-1].sendall(GET)

        def busy(_: object) -> None:
            # Both run in one turn of the event loop: this, and what follows the wait for handshakes.
            asyncio.get_running_loop().call_soon(connect)

        async def accepting(listener: socket.socket) -> None:
            await accept_last(Listener(listener, *errors))  # type: ignore[arg-type]

        monkeypatch.setattr("service.http.server.HANDSHAKE_S", 0)
        monkeypatch.setattr("service.http.server.drop_new_connections", busy)
        monkeypatch.setattr(live.server, "_accept_last", accepting)
        live.server.handle_exit(signal.SIGTERM, None)
        eventually(lambda: len(waiting) == clients)
        yield waiting


def test_clients_that_wait_to_be_accepted_when_the_service_stops_are_answered(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ConnectionAbortedError(errno.ECONNABORTED, "aborted")
    with stopped_while_clients_wait(bundles, monkeypatch, 20, gone) as waiting:
        assert [statuses(read_all(raw)) for raw in waiting] == [[200]] * 20


def test_what_keeps_the_last_clients_from_being_accepted_is_logged(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = OSError(errno.EMFILE, "too many open files")
    with stopped_while_clients_wait(bundles, monkeypatch, 1, full):
        eventually(lambda: "too many open files" in caplog.text)
