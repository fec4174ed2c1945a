"""Two services behind nginx: a new version, restarts and a crash, one service after the other, and no request fails."""

import os
import random
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.fleet import Fleet, fleet, soon
from tests.support.live import Client
from tests.support.nginx import needs_nginx, proxy
from tests.support.swaps import KEY, TEXT, manage, put
from tests.support.tiny import SPECS, write_tiny_bundle

CLIENTS = 4
ASKED = 40
"""Answers awaited between two steps, so that both services have work."""


class Visitors:
    """Clients that ask over and over, and what each of them was answered."""

    def __init__(self, front: Client) -> None:
        self.front, self.is_over = front, threading.Event()
        self.statuses = Counter[int]()
        self.versions: list[list[str]] = [[] for _ in range(CLIENTS)]
        """Versions that answered each client, in order."""

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.ask, args=(seen,)) for seen in self.versions]
        for thread in threads:
            thread.start()
        try:
            self.more()
            yield
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    def ask(self, seen: list[str]) -> None:
        while not self.is_over.is_set():
            reply = self.front.post("/classify", {**TEXT, "model": "mood"})
            self.statuses[reply.status] += 1
            seen.append(reply.headers.get("x-model-version", ""))

    def more(self) -> None:
        """Wait until each client has been answered more."""
        before = [len(seen) for seen in self.versions]
        soon(
            lambda: all(
                len(seen) >= n + ASKED // CLIENTS for seen, n in zip(self.versions, before, strict=True)
            )
        )


def fixed_port() -> int:
    """Return a free port that no connection takes while its service is away: those of clients are above."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start(stack: ExitStack, folder: Path, port: int) -> Fleet:
    options = ("--bundles", str(folder), "--port", str(port), "--admin-api-key", KEY)
    return stack.enter_context(fleet(*options, frontends=1))


def kill_all(service: Fleet) -> None:
    """End a service as a power cut does."""
    for pid in (service.supervisor, *service.children()):
        os.kill(pid, signal.SIGKILL)
    service.process.popen.wait()


@needs_nginx
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_two_services_are_rolled_and_no_request_fails(rounds: int, tmp_path: Path) -> None:
    ports, folders = (fixed_port(), fixed_port()), (tmp_path / "one/bundles", tmp_path / "two/bundles")
    write_tiny_bundle(tmp_path / "mood", "mood", SPECS["mood"], 0, version="1")
    for folder in folders:
        shutil.copytree(tmp_path / "mood", folder / "mood")
    with ExitStack() as stack, proxy(tmp_path, *ports) as front:
        services = [start(stack, folder, port) for folder, port in zip(folders, ports, strict=True)]
        visitors = Visitors(front)
        with visitors.asking():
            for version in range(2, 2 + rounds):
                for turn, folder in enumerate(folders):
                    put(folder / "mood", "mood", SPECS["mood"], version, version=str(version))
                    if turn:
                        services[turn].stop(signal.SIGHUP)
                        soon(lambda: answers(services[1], str(version)))  # noqa: B023
                    else:
                        assert manage(services[turn], "mood", "load").status == 200
                    visitors.more()
                rolled = [len(seen) + 1 for seen in visitors.versions]  # one request may be under way
                for turn, (folder, port) in enumerate(zip(folders, ports, strict=True)):
                    services[turn].stop()
                    assert services[turn].process.popen.wait(120) == 0
                    visitors.more()
                    services[turn] = start(stack, folder, port)
                    visitors.more()
                kill_all(services[0])
                visitors.more()
                services[0] = start(stack, folders[0], ports[0])
                visitors.more()
                after = {each for seen, n in zip(visitors.versions, rolled, strict=True) for each in seen[n:]}
                assert after == {str(version)}, "no client goes back to the version before"
        assert visitors.statuses.keys() == {200}
    assert {each for seen in visitors.versions for each in seen} == {str(n) for n in range(1, 2 + rounds)}
    log = (tmp_path / "access.log").read_text()
    assert f"127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}" in log, (
        "the second was asked what the first could not answer"
    )


def answers(service: Fleet, version: str) -> bool:
    return service.post("/classify", {**TEXT, "model": "mood"}).headers["x-model-version"] == version
