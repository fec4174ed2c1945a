"""A key's rules hold for all frontends of a service together."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.fleet import ANSWER_S, Fleet, fleet, kill, soon
from tests.support.live import Client
from tests.support.process import address, children, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes need POSIX")
RATE, FRONTENDS, CLIENTS, SECONDS = 3, 2, 8, 5.0


def test_two_frontends_admit_together_what_a_key_may_ask(bundles: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"web": {"key": "web-key-1", "requests_per_second": RATE}}))
    arguments = [
        "--bundles",
        str(bundles / "mood"),
        "--frontends",
        str(FRONTENDS),
        "--api-keys-file",
        str(keys),
    ]
    with started(*arguments) as process:
        client = Client(address(process.until("Ready at")))
        assert len(children(process.popen.pid)) == 1 + FRONTENDS
        ready = 0
        while (ready := ready + 1 if client.get("/health/ready").status == 200 else 0) < 20:
            time.sleep(0.01)  # until the other one is, too
        began = time.monotonic()

        def ask(_: int) -> list[int]:
            """Ask on ever new connections, which both frontends accept."""
            statuses = list[int]()
            while time.monotonic() < began + SECONDS:
                statuses.append(client.post("/classify", {"text": "a film"}, x_api_key="web-key-1").status)
                time.sleep(0.01)
            return statuses

        with ThreadPoolExecutor(CLIENTS) as pool:
            statuses = [status for each in pool.map(ask, range(CLIENTS)) for status in each]
        seconds = time.monotonic() - began
    assert 429 in statuses
    # A second's worth may come at once, then the rate. One frontend's part alone would be half of that.
    most = RATE * (1 + seconds)
    assert most / FRONTENDS + 1 < statuses.count(200) <= most + FRONTENDS


@contextmanager
def in_progress(running: Fleet) -> Iterator[None]:
    """Send a request whose body never comes."""
    head = b"POST /classify HTTP/1.1\r\nhost: x\r\nx-api-key: web-key-1\r\ncontent-type: application/json\r\n"
    with socket.create_connection(running.connect_to(), ANSWER_S) as connection:
        connection.sendall(head + b"content-length: 10\r\n\r\n")
        soon(lambda: running.metric("bert_requests_in_flight") == 1)
        yield


def test_requests_in_progress_are_counted_over_all_frontends(bundles: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"web": {"key": "web-key-1", "concurrency": 1}}))
    arguments = ("--bundles", str(bundles / "mood"), "--api-keys-file", str(keys))
    with fleet(*arguments, frontends=FRONTENDS) as running:

        def asked() -> int:
            return running.post("/classify", {"text": "a film"}, x_api_key="web-key-1").status

        with in_progress(running):
            for _ in running.each_frontend():
                assert asked() == 429
        soon(lambda: asked() == 200)
        with ExitStack() as stack:
            for holder in running.each_frontend():  # noqa: B007
                stack.enter_context(in_progress(running))
                break
            assert asked() == 429
            kill(holder)
            soon(lambda: asked() == 200)
