"""The command as a process: stopped, out of disk, with a damaged checkpoint, it ends as one that nothing befell."""

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.pretraining_runs import (
    arguments,
    checkpoints,
    ended,
    losses,
    start,
    step_of,
    wait_for_steps,
)

pytestmark = pytest.mark.slow
Losses = list[tuple[int, float, float]]


@pytest.fixture(scope="module")
def calm(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Losses of a run that nothing befalls."""
    out = tmp_path_factory.mktemp("calm") / "run"
    run = start(arguments(corpus, out))
    printed = ended(run)
    assert run.returncode == 0, printed
    return losses(out)


@pytest.fixture(scope="module")
def stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder after SIGTERM in the middle of it, with two checkpoints."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run = start(arguments(corpus, out))
    wait_for_steps(run, out, 25)
    run.send_signal(signal.SIGTERM)
    printed = ended(run)
    assert run.returncode == 128 + signal.SIGTERM, printed
    step = len(losses(out))
    assert 25 <= step < 200
    assert f"stopped at step {step} of 200; the same command resumes from there" in printed
    assert "Traceback" not in printed
    assert step_of(checkpoints(out)[-1]) == step
    return out


def gone_on(corpus: Path, out: Path) -> str:
    """Run the same command again, to the end; return what it printed."""
    run = start(arguments(corpus, out))
    printed = ended(run)
    assert run.returncode == 0, printed
    assert (out / "model" / "model.safetensors").is_file()
    return printed


def test_a_stopped_run_goes_on_with_the_losses_that_it_would_have_had(
    corpus: Path, stopped: Path, calm: Losses, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    assert f"resuming from step {len(losses(stopped))} of 200 " in gone_on(corpus, out)
    assert losses(out) == calm


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "name", "said"),
    [
        (
            flip_a_bit,
            "weights.safetensors",
            "weights.safetensors is not what was written (its sha256 differs)",
        ),
        pytest.param(
            cut,
            "optimizer.safetensors",
            "optimizer.safetensors is not what was written (its sha256 differs)",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_gone_on_from(
    corpus: Path,
    stopped: Path,
    calm: Losses,
    tmp_path: Path,
    damage: Callable[[Path], None],
    name: str,
    said: str,
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    before, newest = checkpoints(out)
    damage(newest / name)
    printed = gone_on(corpus, out)
    assert f"{newest} is passed over: {said}" in printed
    assert f"resuming from step {step_of(before)} of 200 " in printed
    assert losses(out) == calm


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 2 MiB; yield whether that was allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room on a small disk; return the file that takes it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    return ballast


@pytest.mark.usefixtures("nothing_compiled")
def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(corpus: Path, calm: Losses, tmp_path: Path) -> None:
    """A real small disk where a test may mount one; elsewhere no file may grow, which the kernel says of each write."""
    with small_disk(tmp_path / "disk") as mounted:
        out = tmp_path / "disk" / "run"
        run = start(arguments(corpus, out))
        wait_for_steps(run, out, 25)
        ballast = fill(tmp_path / "disk") if mounted else None
        if not mounted:
            resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (1024, 1024))
        printed = ended(run)
        assert run.returncode == 1, printed
        newest = checkpoints(out)[-1]
        reason = "No space left on device" if mounted else "File too large"
        assert f"could not be written: {reason}; the last good checkpoint is {newest}. Make room" in printed
        assert "Traceback" not in printed and "Exception" not in printed
        if ballast:
            ballast.unlink()
        assert f"resuming from step {step_of(newest)} of 200 " in gone_on(corpus, out)
        assert losses(out) == calm


def test_a_run_by_the_clock_shows_the_time_that_is_left(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(arguments(corpus, out, max_steps=0, max_minutes=0.02))
    printed = ended(run)
    assert run.returncode == 0, printed
    steps = [line for line in printed.splitlines() if line.startswith("step ") and "tokens/s" in line]
    assert " of " not in steps[-1] and steps[-1].endswith("  0 s left")
    assert steps[-1].startswith(f"step {len(losses(out)):,}  ")


def left_of(run: subprocess.Popen[str]) -> list[int]:
    """Return the processes of a run's session that have not ended."""
    listed = subprocess.run(["ps", "-eo", "pid=,sid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, session, state in rows if int(session) == run.pid and state[0] != "Z"]


def assert_ends(run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while left_of(run):
        assert time.monotonic() < deadline, "workers outlive their main process"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_to_the_whole_group_leaves_the_workers_to_the_main_process(
    corpus: Path, calm: Losses, tmp_path: Path, number: signal.Signals
) -> None:
    """As Ctrl-C on a terminal, torchrun and service managers send it."""
    out = tmp_path / "run"
    run = start(arguments(corpus, out, data_workers=2), start_new_session=True)
    wait_for_steps(run, out, 25)
    os.killpg(run.pid, number)
    printed = ended(run)
    assert run.returncode == 128 + number, printed
    step = len(losses(out))
    assert f"stopped at step {step} of 200; " in printed and "Traceback" not in printed
    assert losses(out) == calm[:step]
    assert step_of(checkpoints(out)[-1]) == step
    assert_ends(run)


def test_workers_end_with_a_main_process_that_is_killed(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(arguments(corpus, out, data_workers=2), start_new_session=True)
    wait_for_steps(run, out, 25)
    run.kill()
    assert_ends(run)
    ended(run)
