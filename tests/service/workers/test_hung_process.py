"""A process that hangs is noticed, replaced, and meanwhile nothing piles up in the others."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.settings import ServeSettings
from service.workers.heartbeat import HeartbeatMonitor
from service.workers.start import ENGINE
from service.workers.supervisor import POLL_S, Child, Supervisor
from tests.support.crashing import COMMAND, text
from tests.support.crashing_child import HANG, HANG_LOADING, HANG_STARTING
from tests.support.fleet import Fleet, fleet, frozen, is_alive, kill, soon
from tests.support.live import eventually
from tests.support.problems import TEXT, kind
from tests.support.process import children, started

BOUND = 1000
MANY = {"text": ["a film was warm " * 5] * 20}
"""Over 400 tokens."""


@pytest.fixture(scope="module")
def running(bundles: Path) -> Iterator[Fleet]:
    arguments = ("--bundles", str(bundles / "names"), "--hung-after-s", "8", "--request-timeout-ms", "110000")
    with fleet(*arguments, "--max-queue-tokens", str(BOUND), frontends=1, command=COMMAND) as service:
        yield service


def test_what_a_hung_engine_had_is_answered_by_the_next_and_no_more_than_may_wait_is_taken(
    running: Fleet,
) -> None:
    engine = running.engine
    with ThreadPoolExecutor(20) as pool:
        os.kill(engine, signal.SIGSTOP)
        replies = [pool.submit(running.post, "/ner", MANY) for _ in range(20)]
        soon(lambda: running.readiness()[0] == 503)
        late = running.post("/ner", TEXT)
        if is_alive(engine):  # or the next one may be there, on a machine that is busy
            assert (late.status, kind(late)) == (503, "not-ready") and "said nothing" in late.json["detail"]
        statuses = [reply.result().status for reply in replies]
    assert set(statuses) <= {200, 429, 503}, "long before their deadline, which would be a 504"
    assert 1 <= statuses.count(200) <= 4  # 1,000 that wait, and a batch or two in the engine
    assert running.engine != engine


def test_an_engine_whose_batch_never_ends_is_replaced(bundles: Path) -> None:
    arguments = ("--bundles", str(bundles / "mood"), "--hung-after-s", "3", "--request-timeout-ms", "4000")
    with fleet(*arguments, frontends=1, command=COMMAND) as service:
        engine = service.engine
        assert service.post("/classify", text(HANG)).status == 504
        soon(lambda: service.engine != engine)
        service.all_ready()
        soon(lambda: service.post("/classify", TEXT).status == 200)


def test_a_frontend_that_hangs_is_replaced(running: Fleet) -> None:
    (hung,) = running.frontends
    os.kill(hung, signal.SIGSTOP)
    soon(lambda: running.frontends not in ([], [hung]))
    soon(lambda: running.readiness()[0] == 200)
    assert running.post("/ner", TEXT).status == 200


def test_processes_that_were_stopped_with_their_parent_go_on(running: Fleet) -> None:
    before = running.children()
    with frozen(running.supervisor, *before):
        time.sleep(9)
    soon(lambda: running.readiness()[0] == 200)
    time.sleep(1)
    assert running.children() == before


def test_a_parent_that_was_stopped_goes_on(running: Fleet) -> None:
    """Ctrl-Z and fg do this: the parent's wait for signals is interrupted, and no signal has come."""
    engine = running.engine
    with frozen(running.supervisor):
        assert running.post("/ner", TEXT).status == 200
        time.sleep(2 * POLL_S)
    kill(engine)
    soon(lambda: running.engine != engine)
    running.all_ready()


def test_who_has_no_engine_and_a_parent_that_does_nothing_is_not_live(running: Fleet) -> None:
    with frozen(running.supervisor):
        kill(running.engine)
        soon(lambda: running.get("/health/live").status == 503)
        problem = running.get("/health/live").json
        assert problem["type"] == "urn:bert-serve:not-ready"
        assert (
            "its parent process, which starts the engine, has given no sign of life for" in problem["detail"]
        )
    soon(lambda: running.readiness()[0] == 200)
    assert running.get("/health/live").status == 200


def test_while_the_next_engine_hangs_in_its_load_requests_are_refused_at_once(running: Fleet) -> None:
    engine = running.engine
    kill(engine)
    soon(lambda: running.engine != engine)
    with ThreadPoolExecutor(1) as pool, frozen(running.engine):
        early = pool.submit(running.post, "/ner", TEXT)
        assert running.readiness()[0] == 503
        soon(lambda: running.post("/ner", TEXT, x_timeout_ms="500").status == 503)
        refused = running.post("/ner", TEXT)
        assert "the service has had no engine for" in refused.json["detail"]
        assert refused.headers["retry-after"] == "1"
        assert not early.done()
    assert early.result().status == 200
    soon(lambda: running.readiness()[0] == 200)
    assert running.post("/ner", TEXT).status == 200


def test_a_load_that_never_ends_ends_the_start(bundles: Path) -> None:
    arguments = ("--bundles", str(bundles / "mood"), "--frontends", "1", "--load-timeout-s", "2")
    with started(*arguments, command=COMMAND, **{HANG_LOADING: "1"}) as process:
        assert process.popen.wait(120) == 1
        assert "the models are not loaded after 2 s (load_timeout_s)" in process.error()


def test_a_process_that_hangs_before_its_first_sign_of_life_is_replaced_whatever_a_load_may_take(
    bundles: Path,
) -> None:
    arguments = ("--bundles", str(bundles / "mood"), "--frontends", "1", "--load-timeout-s", "600")
    with started(*arguments, command=COMMAND, **{HANG_STARTING: "2"}) as process:
        eventually(lambda: len(children(process.popen.pid)) == 2)
        before = set(children(process.popen.pid))
        eventually(lambda: before.isdisjoint(children(process.popen.pid)))
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(120) == 0
        said = process.error()
        assert "has given no sign of life for" in said and "was ended by SIGKILL; it is restarted" in said


def test_a_hung_process_is_killed_once_however_long_it_takes_to_end(
    bundles: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as listener, subprocess.Popen(["sleep", "60"]) as process:
        supervisor = Supervisor(ServeSettings(bundles=[bundles / "mood"]), {}, [listener], 1)
        monitor = HeartbeatMonitor(-1.0)
        monitor.started()
        supervisor._children = [Child(ENGINE, ENGINE, process=process, monitor=monitor)]
        for _ in range(3):
            supervisor._kill_hung()
        assert caplog.text.count("has given no sign of life") == 1
    assert process.returncode == -signal.SIGKILL
