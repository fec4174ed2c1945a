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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from service.child import ENGINE, FRONTEND, start_message
from service.heartbeat import Pulse
from service.logs import LOGGER
from service.meeting import SOCKET, meeting_place
from service.metrics import SHARED
from service.server import FAILURE
from service.settings import ServeSettings

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a process that ended by itself is started again; twice as long each time."""
STEADY_S = 30.0
"""A process that has run for so long starts with the first pause again."""
POLL_S = 0.5
HUNG_S = 70.0
"""Without a sign of life: longer than the engine process itself waits for a batch."""
END_S = 10.0
"""For what is to end, beyond the time that it was given: then it is killed."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (signal.SIGCHLD, *_STOPS)


@dataclass(slots=True)
class Child:
    """A process that is to be there."""

    kind: str
    announces: bool = False
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    again: float = 0.0
    """When it is to be started, on `time.monotonic`."""
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0


class Signals:
    """Within its block none of _SIGNALS is lost, and none ends this process.

    They are caught and not blocked: a thread of a library blocks nothing, and the system may hand it a signal.
    """

    def __enter__(self) -> Self:
        """Catch them."""
        self._noted, noting = socket.socketpair()
        noting.setblocking(False)
        self._noting, self._fd = noting, signal.set_wakeup_fd(noting.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
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
    entry: str = "service.child"
    """The module whose `main` every process runs."""
    hung_s: float = HUNG_S
    folder: Path = field(init=False)
    """Where they meet, while this runs."""
    _pulse: Pulse = field(init=False)
    _end_by: float = math.inf
    _children: list[Child] = field(default_factory=list)
    _stopping: bool = False
    _failed: bool = False
    _was_ready: bool = False
    """Whether there has been an engine that could be asked."""

    def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        self.listener.listen(self.settings.backlog_connections)  # who comes before a frontend is there waits
        self._children = [Child(ENGINE), *(Child(FRONTEND, not n) for n in range(self.frontends))]
        with Signals() as signals:
            self.folder = meeting_place()
            self._pulse = Pulse(self.folder)
            try:
                while self._step():
                    for number in signals.wait(self._rest_s()):
                        if number in _STOPS:
                            self._stop(signal.Signals(number))
            finally:
                for child in self._children:
                    _kill(child)
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
        """Kill an engine process that gives no sign of life, and whoever does not end in time."""
        engine = self._children[0]
        silent_s = self._pulse.look()
        if engine.process is not None and silent_s > self.hung_s:
            LOGGER.error(
                "%s process %d has given no sign of life for %.0f s", ENGINE, engine.process.pid, silent_s
            )
            self._pulse.forget()
            engine.process.kill()
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
        """Start a process with the modules that this one would import."""
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {self.entry} import main; sys.exit(main(sys.argv))"
        )
        if child.kind == ENGINE:
            self._pulse.forget()
            if not self.folder.is_dir():
                LOGGER.error("%s was removed, where the processes meet; it is made again", self.folder)
                self.folder.mkdir(mode=0o700)
        listener = self.listener.fileno() if child.kind == FRONTEND else None
        child.process = subprocess.Popen(
            [sys.executable, "-c", code, "bert-serve", child.kind],
            stdin=subprocess.PIPE,
            env={**os.environ, SHARED: str(self.folder)},
            process_group=0,  # Ctrl-C is this process's to pass on
            pass_fds=[] if listener is None else [listener],
        )
        assert child.process.stdin is not None
        message = start_message(
            self.settings, self.folder, listener, restarts=child.restarts, announces=child.announces
        )
        try:
            child.process.stdin.write(message)
            child.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, as will be seen
        child.started = time.monotonic()
        LOGGER.info("%s process %d started", child.kind, child.process.pid)

    def _ended(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """Note that a process ended, and when it is to come again."""
        _mark_dead(process.pid, self.folder)
        child.process = None
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode > 0 and not self._was_ready:
            # The first engine never came so far: it has said why, and trying again would not help. Later it may.
            self._failed |= child.kind == FRONTEND or not self._stopping
            child.again = math.inf
            if not self._stopping:
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


def _mark_dead(pid: int, folder: Path) -> None:
    """Forget what a process's gauges said; its counters stay (prometheus_client.multiprocess.mark_process_dead)."""
    for file in folder.glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)
