"""A service of several processes ends completely and leaves nothing, whatever ended it."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.workers.supervisor import FIRST_TRIES
from tests.support.crashing import COMMAND, in_flight, release, text
from tests.support.crashing_child import FAIL_CONNECTING, HANG, KILLED_LOADING, SLOW
from tests.support.fleet import Fleet, fleet, is_alive, kill, soon
from tests.support.problems import TEXT
from tests.support.process import started


@pytest.fixture
def running(bundles: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A service with one frontend, or as many as the test asks for."""
    frontends = getattr(request, "param", 1)
    with fleet("--bundles", str(bundles / "mood"), frontends=frontends, command=COMMAND) as service:
        yield service


def is_refused(running: Fleet) -> bool:
    """Tell whether nobody listens; a service that is about to stop gives no sign at all."""
    try:
        socket.create_connection(running.connect_to(), 0.2).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        pass
    return False


def left_in(temporary: Path) -> list[Path]:
    """Return what is the service's there; onnxruntime writes a file of its own."""
    return list(temporary.glob("bert-serve-*"))


@pytest.mark.parametrize(
    ("running", "number"),
    [(2, signal.SIGTERM), (1, signal.SIGTERM)],
    indirect=["running"],
)
def test_after_a_signal_what_is_in_flight_is_answered_and_nothing_stays(
    running: Fleet, number: signal.Signals
) -> None:
    children = running.children()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(running.post, "/classify", text(SLOW))
        in_flight(running, 1)
        running.stop(number)
        soon(lambda: is_refused(running))
        assert not reply.done()
        release(running)
        assert reply.result(120).status == 200
    assert running.process.popen.wait(120) == 0
    assert not any(map(is_alive, children))
    assert not left_in(running.temporary)


def test_children_whose_parent_was_killed_end_by_themselves(running: Fleet) -> None:
    children = running.children()
    kill(running.supervisor)
    soon(lambda: not any(map(is_alive, children)))
    assert is_refused(running)
    assert not left_in(running.temporary)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_signal_at_start(bundles: Path, short_tmp_path: Path, is_early: bool) -> None:
    with started(
        "--bundles", str(bundles / "mood"), "--frontends", "1", TMPDIR=str(short_tmp_path)
    ) as process:
        process.until("listening on")
        soon(lambda: len(left_in(short_tmp_path)) == 1)
        if not is_early:
            soon(lambda: bool(list(short_tmp_path.glob("*/counter_engine.db"))))
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(120) == 0
        assert "Traceback" not in process.error()  # its end is that of the last child
        assert not left_in(short_tmp_path)


def test_bundles_that_cannot_be_served_end_it_with_1_and_say_why(
    bundles: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    folder = tmp_path / "mood"
    shutil.copytree(bundles / "mood", folder)
    with (folder / "model.onnx").open("ab") as file:
        file.write(b"more")
    with started("--bundles", str(folder), "--frontends", "2", TMPDIR=str(short_tmp_path)) as process:
        assert process.popen.wait(120) == 1
        said = process.error()  # its end is that of the last child
        assert "the file was changed; export the checkpoint again" in said and "Traceback" not in said
        assert "Ready" not in "".join(process.lines)
        assert not left_in(short_tmp_path)


def test_an_engine_that_is_killed_whenever_it_loads_ends_the_service_with_1_and_says_why(
    bundles: Path,
) -> None:
    options = ("--bundles", str(bundles / "mood"), "--frontends", "1", "--log-level", "error")
    with started(*options, command=COMMAND, **{KILLED_LOADING: "1"}) as process:
        assert process.popen.wait(120) == 1
        said = process.error()
    assert said.count("was ended by SIGKILL; it is restarted") == FIRST_TRIES - 1
    assert "the service ends: its engine process was ended by SIGKILL" in said and "raise the limit" in said


def test_a_frontend_that_fails_before_the_service_was_ready_ends_it_with_1_and_says_why(
    bundles: Path,
) -> None:
    """The engine process is ready by then."""
    arguments = ("--bundles", str(bundles / "mood"), "--frontends", "1")
    with started(*arguments, command=COMMAND, **{FAIL_CONNECTING: "1"}) as process:
        assert process.popen.wait(120) == 1
        said = process.error()
        assert "the models cannot be had" in said and "restarted" not in said


def test_temporary_files_may_lie_deep(bundles: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with started("--bundles", str(bundles / "mood"), "--frontends", "1", TMPDIR=str(deep)) as process:
        process.until("Ctrl-C")
        assert not left_in(deep)
        process.popen.terminate()
        assert process.popen.wait(120) == 0


def test_an_engine_that_does_not_end_is_killed(bundles: Path) -> None:
    """Stopped, it stands for native code that holds the interpreter: no signal but SIGKILL reaches it."""
    with fleet("--bundles", str(bundles / "mood"), "--shutdown-grace-s", "1", frontends=1) as running:
        os.kill(running.engine, signal.SIGSTOP)
        running.stop()
        assert running.process.popen.wait(120) == 0
        assert not left_in(running.temporary)


def test_what_outlives_the_grace_is_told_that_the_service_stops(bundles: Path) -> None:
    arguments = ("--bundles", str(bundles / "mood"), "--shutdown-grace-s", "1")
    with (
        fleet(*arguments, frontends=1, command=COMMAND) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        reply = pool.submit(running.post, "/classify", text(HANG))
        in_flight(running, 1)
        running.stop()
        assert reply.result(120).status == 503
        assert reply.result().json["type"] == "urn:bert-serve:not-ready"
        assert running.process.popen.wait(120) == 0


def clear_away(folder: Path) -> None:
    """Remove a folder in which processes may make a file meanwhile."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    soon(is_gone)


def test_a_folder_that_another_user_put_in_its_place_is_not_used(running: Fleet) -> None:
    (folder,) = left_in(running.temporary)
    clear_away(folder)
    folder.mkdir()
    folder.chmod(0o755)
    planted = folder / "planted"
    planted.write_text("0")
    kill(running.engine)
    assert running.process.popen.wait(120) == 1
    assert "is not the folder that this service made" in running.process.error()
    assert planted.read_text() == "0" and not list(folder.glob("*.sock"))


def test_a_folder_of_temporary_files_that_is_cleaned_up_is_made_again(running: Fleet) -> None:
    (folder,) = left_in(running.temporary)
    clear_away(folder)
    kill(running.engine)
    soon(lambda: folder.is_dir())
    running.all_ready()
    assert running.post("/classify", TEXT).status == 200
    assert running.get("/metrics").status == 200
    running.stop()
    assert running.process.popen.wait(120) == 0
    assert not left_in(running.temporary)
