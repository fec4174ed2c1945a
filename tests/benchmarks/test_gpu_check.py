"""The check for a GPU, in small on the CPU: it must not be broken on the day when a GPU is there."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import (
    FAILED,
    OK,
    ROOT,
    STEPS,
    TIMED_OUT,
    Outcome,
    Report,
    environment,
    limit_s,
    run,
    unpack,
)

COMMAND = [sys.executable, "-m", "benchmarks.gpu_check"]


@pytest.mark.slow
def test_the_whole_check_runs_in_small(tmp_path: Path) -> None:
    out = tmp_path / "out"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GPU_CHECK_PACKAGES": str(tmp_path)}
    command = [*COMMAND, "--out", str(out), "--small", "--minutes", "20"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1300)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout[-10_000:]
    assert [step["status"] for step in report["steps"]] == [OK] * len(STEPS)
    page = (out / "report.md").read_text(encoding="utf-8")
    assert page.count("\n## ") == len(STEPS)
    for part in (" passed", "| tiny | mixed | ours |", "| mlm | ours |", "| connections | requests/s |"):
        assert part in page


def run_code(tmp_path: Path, code: str, limit: float = 60.0) -> Outcome:
    """Run a step whose process does `code`."""
    outcome = Outcome("Made up", "")
    variables = environment(tmp_path / "site", tmp_path / "caches")
    run(outcome, limit, variables, tmp_path, [sys.executable, "-c", code])
    return outcome


def test_a_step_that_dies_keeps_its_output(tmp_path: Path) -> None:
    outcome = run_code(tmp_path, "print('| a row |')\nimport os\nos.abort()")
    assert outcome.status == FAILED and outcome.output.startswith("| a row |")


def test_a_step_out_of_time_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "STOP_S", 0.2)
    code = (
        "import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(server.pid)\ntime.sleep(600)\n"
    )
    began = time.monotonic()
    outcome = run_code(tmp_path, code, 5.0)
    assert time.monotonic() - began < 120 and outcome.status == TIMED_OUT
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # until its entry is gone
            os.kill(int(outcome.output), 0)
            time.sleep(0.05)


def test_a_step_has_all_that_later_ones_do_not_need_or_its_share() -> None:
    assert limit_s([100, 60, 40], 300) == 200
    assert limit_s([100, 60, 40], 150) == 75
    assert limit_s([40], 10) == 10
    assert limit_s([40], -1) == 0


def test_brought_packages_come_before_installed_ones(tmp_path: Path) -> None:
    brought, site = tmp_path / "brought", tmp_path / "site"
    brought.mkdir()
    with zipfile.ZipFile(brought / "here-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("json/__init__.py", "brought = True\n")
    with tarfile.open(brought / "there.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("there/__init__.py")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"x = 1"))
    (brought / "broken.whl").write_bytes(b"no wheel")
    names, errors = unpack(brought, site)
    assert names == ["here-1.0-py3-none-any.whl", "there.tar.xz"]
    assert len(errors) == 1 and errors[0].startswith("broken.whl: BadZipFile")
    code = "import json, there, benchmarks.demo; print(json.brought, there.x)"
    variables = environment(site, tmp_path / "caches")
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["True", "1"], done.stderr
    assert unpack(tmp_path / "nothing", site) == ([], [])


def test_the_report_is_there_when_the_check_is_stopped(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path), "--small", "--steps", "tests"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as check:
        assert check.stdout is not None
        assert check.stdout.readline().startswith("Tests: at most")
        check.send_signal(signal.SIGTERM)
        assert check.wait(120) == 143
    (step,) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["steps"]
    assert step["status"] == "not run"
    assert "| Tests | not run |" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_page_is_written_of_nothing() -> None:
    page = Report("command", "today", 500.0, steps=[Outcome("Tests", "pytest")]).page()
    assert "| Tests | not run | 0 |" in page
