"""A baseline's processes: started, awaited, and stopped with all that they started."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serve.load.process_tree import kill
from benchmarks.serve.load.wire import RefusedError, ask
from bert import NO_REPORTS

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    # This checkout first, then what the caller has put on the path.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "PYTHONUNBUFFERED": "1",
    # Nothing is fetched and nothing is told to anybody.
    "HF_HUB_OFFLINE": "1",
    **NO_REPORTS,
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
}
STOP_S = 20.0
LAST_LINES = 12


class BaselineError(RuntimeError):
    """A baseline that did not start, or ended by itself; says the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    pid: int
    """Leads a session of its own, in which all its processes are."""
    url: str


def prepare_process() -> None:
    """Let this program open all the connections that the system allows, and end on SIGTERM as it does on Ctrl-C.

    Otherwise baselines would be left behind.
    """

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def service_command(bundles: Sequence[Path], port: int, settings: Sequence[str] = ()) -> list[str]:
    """Return the command that serves these bundles on a port, with more settings."""
    folders = ",".join(str(bundle.resolve()) for bundle in bundles)
    return [sys.executable, "-m", "service.cli", "--bundles", folders, "--port", str(port), *settings]


@contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the repository's root, its output in a file; stop it and what it started when the block ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        try:
            yield started
        finally:
            _stop(started)


@contextmanager
def server(
    command: Sequence[str], port: int, first: bytes, log: Path, patience_s: float
) -> Iterator[Running]:
    """Run a server until the block ends; raises BaselineError if `first` is not answered within `patience_s`."""
    with process(command, log) as started:
        running = Running(started.pid, f"http://127.0.0.1:{port}")
        _await_answer(started, running.url, first, log, patience_s)
        yield running


def last_lines(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _await_answer(
    started: subprocess.Popen[bytes], url: str, first: bytes, log: Path, patience_s: float
) -> None:
    until, refused = time.monotonic() + patience_s, "no answer"
    while time.monotonic() < until:
        if started.poll() is not None:
            raise BaselineError(f"it ended with {started.returncode}:\n{last_lines(log)}")
        try:
            ask(url, first)
            return
        except (OSError, EOFError):
            pass
        except RefusedError as error:  # listens, and is not ready
            refused = str(error)
        time.sleep(0.25)
    raise BaselineError(f"{refused} within {patience_s:.0f} s:\n{last_lines(log)}")


def _stop(started: subprocess.Popen[bytes]) -> None:
    """End a session: the server in its own way, then whatever of it is left."""
    if started.poll() is None:
        started.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            started.wait(STOP_S)
    kill(started.pid)
    started.wait()
