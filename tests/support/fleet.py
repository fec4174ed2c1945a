"""bert-serve with frontends: real processes, found by their parent, which a test ends or freezes as it likes."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.workers.start import ENGINE, FRONTEND
from tests.support.live import Client, eventually
from tests.support.process import COMMAND, Process, address, started

START_S, ANSWER_S = 120.0, 120
"""Seconds that a busy machine may need to start processes, and to answer requests that wait for them."""
OPTIONS = ("--log-level", "error", "--engine-slots", "1", "--batch-tokens", "128")
NEVER_HUNG = ("--hung-after-s", "3600")
"""Options for a test that freezes processes; a later argument wins."""
LIMITS = ("--request-timeout-ms", str(1000 * ANSWER_S))


@dataclass(frozen=True)
class Fleet(Client):
    process: Process
    temporary: Path
    """Folder of its temporary files."""

    def connect(self) -> HTTPConnection:
        return HTTPConnection(*self.connect_to(), timeout=ANSWER_S)

    @property
    def supervisor(self) -> int:
        return self.process.popen.pid

    @property
    def engine(self) -> int:
        """Wait until there is one, and return its process."""
        found = list[int]()

        def is_there() -> bool:
            found[:] = self.children(ENGINE)
            return len(found) == 1

        soon(is_there)
        return found[0]

    @property
    def frontends(self) -> list[int]:
        return self.children(FRONTEND)

    def children(self, *kinds: str) -> list[int]:
        """Return the running processes of these kinds; of both if none is named."""
        found = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text().split()
        return [int(pid) for pid in found if kind_of(int(pid)) in (kinds or (ENGINE, FRONTEND))]

    def metrics(self) -> dict[str, Metric]:
        """Scrape, and read it as Prometheus does."""
        shown = self.get("/metrics").body.decode()
        return {metric.name: metric for metric in text_string_to_metric_families(shown)}

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels."""
        samples = (sample for metric in self.metrics().values() for sample in metric.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def readiness(self) -> tuple[int, str]:
        """Return what /health/ready says, and why."""
        reply = self.get("/health/ready")
        return reply.status, reply.json.get("detail", "")

    def each_frontend(self) -> Iterator[int]:
        """Let one frontend after another be the only one that answers."""
        for chosen in self.frontends:
            with frozen(*(pid for pid in self.frontends if pid != chosen)):
                yield chosen

    def all_ready(self) -> None:
        """Wait until every frontend is."""
        for _ in self.each_frontend():
            soon(lambda: self.readiness()[0] == 200)

    def all_waiting(self) -> None:
        """Wait until every frontend knows that there is no engine."""
        why = "the service is waiting for its engine, which ended and is being started again"
        for _ in self.each_frontend():
            soon(lambda: self.readiness() == (503, why))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.popen.send_signal(number)


@contextmanager
def fleet(*arguments: str, frontends: int = 2, command: Sequence[str] = COMMAND) -> Iterator[Fleet]:
    """Run a service until the block ends; its temporary files are in a folder with a short name, as a socket needs."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="fleet", ignore_cleanup_errors=True) as folder,
        started(
            *OPTIONS,
            *LIMITS,
            *NEVER_HUNG,
            "--frontends",
            str(frontends),
            *arguments,
            command=command,
            TMPDIR=folder,
        ) as process,
    ):
        running = Fleet(address(process.until("Ctrl-C")), process, Path(folder))
        running.all_ready()
        yield running
        everybody = running.children() if process.popen.poll() is None else []
        process.popen.kill()
        soon(lambda: not any(map(is_alive, everybody)))


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop processes in their tracks until the block ends."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        soon(lambda pid=pid: state_of(pid) == "T")  # type: ignore[misc]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def soon(condition: Callable[[], bool]) -> None:
    """Wait for what processes do; they may have to start for it, on a busy machine."""
    eventually(condition, START_S)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    soon(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    """Return the letter that Linux has for a process's state, nothing for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def kind_of(pid: int) -> str:
    """Return what a child of the supervisor is, nothing if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[-2].decode() if len(words) > 1 else ""
