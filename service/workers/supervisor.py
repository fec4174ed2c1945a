"""`--frontends N`: starts an engine process and N processes that speak HTTP, and restarts them."""

import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO, cast

from service.engine.bundle_folders import FoundBundles
from service.logs import LOGGER, log_signal
from service.settings import ServeSettings
from service.system import FAILURE, HANG_UP, STOPS, handled, total_memory
from service.workers.heartbeat import LOADING_HUNG_S, HeartbeatMonitor
from service.workers.runtime_dir import (
    READY,
    STOPPING,
    make_runtime_dir,
    note,
    remove_runtime_dir,
    restore_runtime_dir,
)
from service.workers.start import ENGINE, FRONTEND, StartMessage

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
"""Shortest and longest pause before a process that ended by itself is restarted; it doubles each time."""
STEADY_S = 30.0
"""Seconds of running after which the pause of a process is the first one again."""
FIRST_TRIES = 4
"""Starts of a process that a signal ends before the service was ever ready, after which the service gives up."""
POLL_S = 0.5
END_S = 10.0
"""Seconds beyond its allowed time after which a process that does not end is killed."""
_CHILD = """
import signal, sys
sys.path[:] = {path!r}
from service.system import HANG_UP, STOPS, exit_at_once
for number in STOPS:
    signal.signal(number, signal.SIG_IGN if {ignores!r} or number == HANG_UP else exit_at_once)
signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
from {entry} import main
sys.exit(main(sys.argv))
"""
"""Code of a child, with its parent's import path. Signals that stop it are blocked until it can handle them."""


@dataclass(slots=True)
class Child:
    """A process that the supervisor keeps running."""

    kind: str
    name: str
    """Name, unique among the children and kept by a successor."""
    announces: bool = False
    process: subprocess.Popen[bytes] | None = None
    monitor: HeartbeatMonitor | None = None
    started: float = 0.0
    start_at: float = 0.0
    """Time of its next start, on `time.monotonic`."""
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0

    def end_monitor(self) -> None:
        """Close the heartbeat pipe."""
        if self.monitor is not None:
            self.monitor.close()
        self.monitor = None


@dataclass(slots=True)
class Supervisor:
    """Keeps the processes of a service running."""

    settings: ServeSettings
    found: FoundBundles
    listeners: Sequence[socket.socket]
    frontends: int
    entry: str = "service.workers.worker_main"
    """Module whose `main` every child runs."""
    runtime_dir: Path = field(init=False)
    """Runtime directory of the service."""
    _end_by: float = math.inf
    _children: list[Child] = field(default_factory=list)
    _stopping: bool = False
    _failed: bool = False
    _was_ready: bool = False
    """A frontend has been ready."""

    def run(self) -> int:
        """Serve until a signal; return the exit code."""
        # Connections wait in the backlog until a frontend accepts.
        for listener in self.listeners:
            listener.listen(self.settings.backlog_connections)
        self._children = [
            Child(ENGINE, ENGINE),
            *(Child(FRONTEND, f"{FRONTEND}-{n}", not n) for n in range(self.frontends)),
        ]
        signals = SimpleQueue[int]()
        with handled(lambda number, _: signals.put(number), signal.SIGCHLD):
            self.runtime_dir = make_runtime_dir()
            try:
                while self._step():
                    with suppress(Empty):
                        number = signals.get(timeout=self._idle_s())
                        if number == HANG_UP:
                            self._look_again()
                        elif number in STOPS:
                            log_signal(number)
                            self._stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
            finally:
                for child in self._children:
                    if child.process is not None:
                        child.process.kill()
                        child.process.wait()
                remove_runtime_dir(self.runtime_dir)
        return FAILURE if self._failed else 0

    def is_loaded(self) -> bool:
        """Tell whether the models are, or were, loaded."""
        return self._was_ready

    def is_stopping(self) -> bool:
        """Tell whether a signal has come."""
        return self._stopping

    def _step(self) -> bool:
        """Handle ended children and start those that are due; return whether any is left."""
        self._was_ready |= (self.runtime_dir / READY).exists()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, child.process)
        self._kill_hung()
        wanted = self._wanted()
        for child in wanted:
            if child.process is None and time.monotonic() >= child.start_at:
                self._start(child)
        engine = self._children[0]
        if not wanted and engine.process is not None and engine.process.stdin is not None:
            engine.process.stdin.close()  # tells it to end
            engine.process.stdin = None
            self._end_by = min(self._end_by, time.monotonic() + END_S)
        return bool(wanted) or engine.process is not None

    def _kill_hung(self) -> None:
        """Kill children without a heartbeat, and those that do not end in time."""
        for child in self._children:
            if child.process is None or child.monitor is None:
                continue
            if (silent_s := child.monitor.silent_s()) is not None:
                what = "%s process %d has given no sign of life for %.0f s and is killed"
                LOGGER.error(what, child.kind, child.process.pid, silent_s)
                child.process.kill()
                child.end_monitor()  # killed once, however long it takes to end
        if time.monotonic() > self._end_by:
            self._end_by = math.inf
            for child in self._children:
                if child.process is not None:
                    LOGGER.error("%s process %d does not end and is killed", child.kind, child.process.pid)
                    child.process.kill()

    def _wanted(self) -> list[Child]:
        """Return the children that are to run; while stopping, the engine as long as a frontend runs."""
        if not self._stopping:
            return self._children
        engine, *frontends = self._children
        return [engine] if any(child.process is not None for child in frontends) else []

    def _idle_s(self) -> float:
        """Return the seconds until the next start or check."""
        waits = [child.start_at - time.monotonic() for child in self._wanted() if child.process is None]
        return max(0.0, min([POLL_S, *waits]))

    def _start(self, child: Child) -> None:
        """Start a child; end the service if the runtime directory has become somebody else's."""
        try:
            if restore_runtime_dir(self.runtime_dir):
                LOGGER.error("the runtime directory %s was removed and is made again", self.runtime_dir)
        except OSError as error:
            LOGGER.error("the service ends: %s", error)
            self._failed, child.start_at = True, math.inf
            self._stop(signal.SIGTERM)
            return
        child.monitor = HeartbeatMonitor(LOADING_HUNG_S)
        listeners = [each.fileno() for each in self.listeners] if child.kind == FRONTEND else []
        message = StartMessage(
            self.settings,
            self.found,
            self.runtime_dir,
            child.name,
            listeners,
            child.monitor.child_fd,
            restarts=child.restarts,
            announces=child.announces,
            is_successor=self._was_ready,
        )
        child.process = self._spawn(child.kind, [message.heartbeat, *listeners])
        child.monitor.started()
        assert child.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the next step handles
            message.write(cast(BinaryIO, child.process.stdin))
        child.started = time.monotonic()
        LOGGER.info("%s process %d started", child.kind, child.process.pid)

    def _spawn(self, kind: str, inherited: list[int]) -> "subprocess.Popen[bytes]":
        """Start a process with these file descriptors."""
        code = _CHILD.format(path=sys.path, entry=self.entry, ignores=kind == ENGINE)
        # -P: no modules of the working directory
        command = [sys.executable, "-P", "-c", code, "bert-serve", kind]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # inherited
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                process_group=0,  # Ctrl-C reaches only this process, which passes it on
                pass_fds=inherited,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ended(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """Record the end of a child and schedule its restart."""
        from prometheus_client.multiprocess import mark_process_dead  # at the head it would delay the start

        mark_process_dead(child.name, self.runtime_dir)  # type: ignore[no-untyped-call]
        child.process = None
        was_hung = child.monitor is None
        child.end_monitor()
        if process.stdin is not None:
            process.stdin.close()
        is_last_try = child.restarts >= FIRST_TRIES - 1 and not was_hung
        if not self._was_ready and (process.returncode > 0 or is_last_try):
            # The first start failed and said why; a retry would not help. After a first success it may.
            child.start_at = math.inf
            if not self._stopping:
                if process.returncode <= 0:
                    _log_giving_up(child, process.returncode)
                self._failed = True
                self._stop(signal.SIGTERM)
            return
        if child not in self._wanted():
            return
        if time.monotonic() - child.started > STEADY_S:
            child.pause_s = FIRST_PAUSE_S
        child.start_at = time.monotonic() + child.pause_s
        what = "%s process %d %s; it is restarted in %.1f s"
        LOGGER.error(what, child.kind, process.pid, _end_of(process.returncode), child.pause_s)
        child.pause_s = min(2 * child.pause_s, MAX_PAUSE_S)
        child.announces = False
        child.restarts += 1

    def _look_again(self) -> None:
        """Have the engine process look at its bundles; one that starts reads them anyway."""
        LOGGER.info("SIGHUP: the bundles are looked at again")
        engine = self._children[0].process
        if engine is not None and HANG_UP is not None:
            engine.send_signal(HANG_UP)

    def _stop(self, number: signal.Signals) -> None:
        """Tell the frontends to finish; the engine process runs until they have."""
        if not self._stopping:
            given_s = self.settings.drain_s + self.settings.shutdown_grace_s
            self._end_by = time.monotonic() + given_s + END_S
        self._stopping = True
        note(self.runtime_dir, STOPPING)
        for listener in self.listeners:
            listener.close()  # the frontends close theirs when they stop taking requests
        for child in self._children[1:]:
            if child.process is not None:
                child.process.send_signal(number)


def _log_giving_up(child: Child, code: int) -> None:
    """Say why the service ends: a process of its first start was ended again and again."""
    what = "the service ends: its %s process %s, and %d starts have failed before the models were loaded%s"
    hint = ""
    if code == -signal.SIGKILL:
        memory = total_memory()
        amount = "" if memory is None else f" of {memory >> 20} MiB"
        hint = (
            f". The system does that when the memory{amount} that this container or machine has is full:"
            " raise the limit, or serve fewer models or 8-bit ones (docs/operations.md#memory)"
        )
    LOGGER.error(what, child.kind, _end_of(code), child.restarts + 1, hint)


def _end_of(code: int) -> str:
    """Describe how a process ended."""
    names = {int(number): number.name for number in signal.Signals}
    return f"ended with code {code}" if code >= 0 else f"was ended by {names.get(-code, f'signal {-code}')}"
