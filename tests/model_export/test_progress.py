"""Progress of an export: what is estimated, and what a terminal and a file show of it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert.errors import ConfigError
from model_export.progress import Progress, shown
from tests.support.checkpoints import SPECS, write_checkpoint
from tests.support.process import ROOT

COMMAND = [sys.executable, "-m", "model_export.command", "--precision", "fp32"]
SLOW = "import time, model_export.verify.precision as v; v.check_attention = lambda *_: time.sleep(500); "


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("slowness", [0.5, 1, 8])
def test_an_estimate_follows_the_speed_of_what_is_done(slowness: float) -> None:
    clock = Clock()
    progress = Progress(clock)
    assert progress.estimate() == (0, None)
    progress.expect(100)
    for seconds in (10, 30):
        progress.begin("a step", seconds)
        for share in (0.5, 1.0):
            clock.now += seconds * slowness / 2
            progress.advance(share)
    share, left = progress.estimate()
    assert share == 0.4 and left == pytest.approx(60 * slowness, rel=0.1)
    progress.begin("the last", 60)
    clock.now += 30 * slowness
    share, left = progress.estimate()
    assert share == pytest.approx(0.7, abs=0.05) and left == pytest.approx(30 * slowness, rel=0.2)


def test_a_step_that_takes_longer_stays_at_its_end() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.expect(10)
    progress.begin("a step", 5)
    clock.now = 1000
    assert progress.estimate()[0] == 0.5


def test_the_share_that_is_done_never_falls() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.expect(100)
    shares = []
    progress.begin("a step that slows down", 50)
    for share in (0.1, 0.2, 0.3):
        for _ in range(10):
            clock.now += share * 10
            shares.append(progress.estimate()[0])
        progress.advance(share)
    progress.expect(200)  # more has to be done than was known
    shares.append(progress.estimate()[0])
    assert shares == sorted(shares)


def test_the_file_says_what_is_done_and_goes_at_the_end(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny", SPECS["classification"])
    file = tmp_path / "progress.json"
    arguments = [
        "--checkpoint",
        str(tmp_path / "tiny"),
        "--out",
        str(tmp_path / "b"),
        "--progress-file",
        str(file),
    ]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    states = []
    while process.poll() is None:
        if file.exists():
            states.append(json.loads(file.read_text("utf-8")))
        time.sleep(0.01)
    assert process.returncode == 0 and states
    assert all(set(state) == {"step", "done", "seconds_left"} for state in states)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "tiny"]
    assert process.communicate()[1].splitlines()[0].startswith(f"  reading {tmp_path / 'tiny'} ... ")
    arguments[-1] = str(tmp_path / "nowhere" / "progress.json")
    refused = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert (
        refused.stderr
        == f"bert-export: progress file {arguments[-1]} cannot be written: No such file or directory\n"
    )


def test_a_progress_file_replaces_files_only(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        with pytest.raises(ConfigError, match=f"progress file {place} is not a regular file"), shown(place):
            pass
    assert list(tmp_path.iterdir()) == [pipe] and pipe.is_fifo()


def test_an_export_goes_on_when_nobody_reads_its_messages(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny", SPECS["classification"])
    arguments = ["--checkpoint", str(tmp_path / "tiny"), "--out", str(tmp_path / "b")]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(120) == 0
    assert (tmp_path / "b" / "bundle.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_under_the_bar_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny", SPECS["classification"])
    paths = {
        "checkpoint": tmp_path / "tiny",
        "out": tmp_path / "b",
        "progress-file": tmp_path / "progress.json",
    }
    arguments = ["--precision", "fp32", *(f"--{name}={path}" for name, path in paths.items())]
    script = f"import sys; {SLOW} from model_export.command import main; sys.argv[1:] = {arguments!r}; sys.exit(main())"
    terminal, inner = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=inner)
    os.close(inner)
    shown = ""
    while "left: building the fp32 graph" not in shown:
        shown += os.read(terminal, 1000).decode()
    process.send_signal(number)
    assert process.wait(120) == 130
    shown = os.read(terminal, 1000).decode()
    os.close(terminal)
    assert "building the fp32 graph ... failed" in shown and "what was not finished is not there" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
