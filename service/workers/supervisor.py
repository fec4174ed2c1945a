"""`--frontends N`: an engine process, N processes that speak HTTP, and this one, which starts them and starts them again."""

import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from service.exit_signals import FAILURE, STOPS, is_ignored
from service.logs import LOGGER
from service.metrics import SHARED, forget_gauges
from service.settings import ServeSettings
from service.workers.heartbeat import LOADING_HUNG_S, HeartbeatMonitor
from service.workers.runtime_dir import SOCKET, is_own, make_again, meeting_place
from service.workers.start_message import ENGINE, FRONTEND, StartMessage

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a process that ended by itself is started again; twice as long each time."""
STEADY_S = 30.0
"""A process that has run for so long starts with the first pause again."""
POLL_S = 0.5
END_S = 10.0
"""For what is to end, beyond the time that it was given: then it is killed."""
_CHILD = """
import signal, sys
sys.path[:] = {path!r}
from service.exit_signals import STOPS, exit_at_once, is_ignored
for number in STOPS:
    if not is_ignored(number):
        signal.signal(number, signal.SIG_IGN if {ignores!r} else exit_at_once)
signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
from {entry} import main
sys.exit(main(sys.argv))
"""
"""What a child runs, with the modules that its parent would import; what stops it is blocked until it can be handled."""


@dataclass(slots=True)
class Child:
    """A process that is to be there."""

    kind: str
    name: str
    """Unlike those of the others, and of the process that takes its place the same."""
    announces: bool = False
    process: subprocess.Popen[bytes] | None = None
    monitor: HeartbeatMonitor | None = None
    started: float = 0.0
    again: float = 0.0
    """When it is to be started, on `time.monotonic`."""
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0


class Signals:
    """Within its block no signal that stops the service is lost, nor SIGCHLD, and none ends this process.

    They are caught and not blocked: a thread of a library blocks nothing, and the system may hand it a signal.
    """

    def __enter__(self) -> Self:
        """Catch them."""
        self._noted, noting = socket.socketpair()
        noting.setblocking(False)
        self._noting, self._fd = noting, signal.set_wakeup_fd(noting.fileno(), warn_on_full_buffer=False)
        caught = (signal.SIGCHLD, *(number for number in STOPS if not is_ignored(number)))
        self._before = {number: signal.signal(number, lambda *_: None) for number in caught}
        return self

    def __exit__(self, *_: object) -> None:
        """Leave them as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        self._noted.close()
        self._noting.close()

    def wait(self, seconds: float) -> bytes:
        """Return the numbers of those that came, at the latest after so long."""
        return self._noted.recv(4096) if select.select([self._noted], [], [], seconds)[0] else b""


@dataclass(slots=True)
class Supervisor:
    """Keeps the processes of a service running."""

    settings: ServeSettings
    listener: socket.socket
    frontends: int
    entry: str = "service.workers.worker_main"
    """The module whose `main` every process runs."""
    folder: Path = field(init=False)
    """Where they meet, while this runs."""
    _end_by: float = math.inf
    _children: list[Child] = field(default_factory=list)
    _stopping: bool = False
    _failed: bool = False
    _was_ready: bool = False
    """Whether there has been an engine that could be asked."""

    def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        self.listener.listen(self.settings.backlog_connections)  # who comes before a frontend is there waits
        self._children = [
            Child(ENGINE, ENGINE),
            *(Child(FRONTEND, f"{FRONTEND}-{n}", not n) for n in range(self.frontends)),
        ]
        with Signals() as signals:
            self.folder = meeting_place()
            try:
                while self._step():
                    for number in signals.wait(self._rest_s()):
                        if number in STOPS:
                            # A hang-up is to the frontends what SIGTERM is.
                            self._stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
            finally:
                for child in self._children:
                    _kill(child)
                if is_own(self.folder):
                    shutil.rmtree(self.folder, ignore_errors=True)
        return FAILURE if self._failed else 0

    def _step(self) -> bool:
        """See who ended and start who is to run; False when all is over."""
        self._was_ready |= (self.folder / SOCKET).exists()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, child.process)
        self._kill_hung()
        wanted = self._wanted()
        for child in wanted:
            if child.process is None and time.monotonic() >= child.again:
                self._start(child)
        engine = self._children[0]
        if not wanted and engine.process is not None and engine.process.stdin is not None:
            engine.process.stdin.close()  # its sign to end
            engine.process.stdin = None
            self._end_by = min(self._end_by, time.monotonic() + END_S)
        return bool(wanted) or engine.process is not None

    def _kill_hung(self) -> None:
        """Kill a process that gives no sign of life, and whoever does not end in time."""
        for child in self._children:
            if child.process is None or child.monitor is None:
                continue
            if (silent_s := child.monitor.silent_s()) is not None:
                LOGGER.error(
                    "%s process %d has given no sign of life for %.0f s and is killed",
                    child.kind,
                    child.process.pid,
                    silent_s,
                )
                child.process.kill()
                child.monitor.close()
                child.monitor = None  # it is killed once, however long it takes to end
        if time.monotonic() > self._end_by:
            self._end_by = math.inf
            for child in self._children:
                if child.process is not None:
                    LOGGER.error("%s process %d does not end and is killed", child.kind, child.process.pid)
                    child.process.kill()

    def _wanted(self) -> list[Child]:
        """Return the processes that are to be there: the engine's as long as a frontend is."""
        if not self._stopping:
            return self._children
        engine, *frontends = self._children
        return [engine] if any(child.process is not None for child in frontends) else []

    def _rest_s(self) -> float:
        """Return until when nothing is to be done unless a signal comes."""
        waits = [child.again - time.monotonic() for child in self._wanted() if child.process is None]
        return max(0.0, min([POLL_S, *waits]))

    def _start(self, child: Child) -> None:
        """Start a process; end the service where the folder in which they meet has become somebody else's."""
        try:
            if make_again(self.folder):
                LOGGER.error("%s was removed, where the processes meet; it was made again", self.folder)
        except OSError as error:
            LOGGER.error("the service ends: %s", error)
            self._failed, child.again = True, math.inf
            self._stop(signal.SIGTERM)
            return
        code = _CHILD.format(path=sys.path, entry=self.entry, ignores=child.kind == ENGINE)
        monitor = child.monitor = HeartbeatMonitor(LOADING_HUNG_S)
        listener = self.listener.fileno() if child.kind == FRONTEND else None
        with blocked_signals():
            child.process = subprocess.Popen(
                [sys.executable, "-c", code, "bert-serve", child.kind],
                stdin=subprocess.PIPE,
                env={**os.environ, SHARED: str(self.folder)},
                process_group=0,  # Ctrl-C is this process's to pass on
                pass_fds=[monitor.child_fd, *([] if listener is None else [listener])],
            )
        monitor.started()
        assert child.process.stdin is not None
        message = StartMessage(
            self.settings,
            str(self.folder),
            child.name,
            listener,
            monitor.child_fd,
            restarts=child.restarts,
            announces=child.announces,
        )
        try:
            child.process.stdin.write(message.to_line())
            child.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, as will be seen
        child.started = time.monotonic()
        LOGGER.info("%s process %d started", child.kind, child.process.pid)

    def _ended(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """Note that a process ended, and when it is to come again."""
        forget_gauges(child.name, self.folder)
        child.process = None
        if child.monitor is not None:
            child.monitor.close()
            child.monitor = None
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode > 0 and not self._was_ready:
            # The first engine never came so far: it has said why, and trying again would not help. Later it may.
            child.again = math.inf
            if not self._stopping:
                self._failed = True
                self._stop(signal.SIGTERM)
            return
        if child not in self._wanted():
            return
        if time.monotonic() - child.started > STEADY_S:
            child.pause_s = FIRST_PAUSE_S
        child.again = time.monotonic() + child.pause_s
        LOGGER.error(
            "%s process %d %s; it is started again in %.1f s",
            child.kind,
            process.pid,
            _end_of(process.returncode),
            child.pause_s,
        )
        child.pause_s = min(2 * child.pause_s, LONGEST_PAUSE_S)
        child.announces = False
        child.restarts += 1

    def _stop(self, number: signal.Signals) -> None:
        """Tell the frontends to finish; the engine process goes on until they have."""
        if not self._stopping:
            given_s = self.settings.drain_s + self.settings.shutdown_grace_s
            self._end_by = time.monotonic() + given_s + END_S
        self._stopping = True
        self.listener.close()  # theirs stay open while they take requests, then who comes is refused
        for child in self._children[1:]:
            if child.process is not None:
                child.process.send_signal(number)


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block what stops the service, for a child that is started meanwhile: it inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_of(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _kill(child: Child) -> None:
    if child.process is not None:
        child.process.kill()
        child.process.wait()
