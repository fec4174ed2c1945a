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
from typing import Any

import pytest

from benchmarks.gpu_check import processes
from benchmarks.gpu_check.packages import ROOT, environment, unpack
from benchmarks.gpu_check.plan import SECTIONS, Section, limit_s
from benchmarks.gpu_check.processes import run_section
from benchmarks.gpu_check.records import FAILED, OK, SKIPPED, TIMED_OUT, Findings, Recorder, read_into
from benchmarks.gpu_check.report import Report, table

COMMAND = [sys.executable, "-m", "benchmarks.gpu_check"]
TABLES = {
    "environment",
    "rates",
    "parity",
    "matmul",
    "engine",
    "a lone text",
    "training",
    "served",
    "captures",
    "resume",
}


@pytest.mark.slow
def test_the_whole_check_runs_in_small(tmp_path: Path) -> None:
    out = tmp_path / "out"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GPU_CHECK_PACKAGES": str(tmp_path)}
    command = [*COMMAND, "--out", str(out), "--device", "cpu", "--small", "--minutes", "20"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1300)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    said = (out / "log.txt").read_text(encoding="utf-8", errors="replace")
    problems = [
        (found["name"], found["status"], found["error"], found["errors"]) for found in report["sections"]
    ]
    assert done.returncode == 0, (problems, done.stderr, said[-5000:])
    assert [found["name"] for found in report["sections"]] == [section.name for section in SECTIONS]
    assert {found["status"] for found in report["sections"]} == {OK}, problems
    tables: dict[str, list[dict[str, Any]]] = {
        name: rows for found in report["sections"] for name, rows in found["tables"].items()
    }
    assert set(tables) == TABLES
    skipped = [reason for found in report["sections"] for reason in found["skipped"]]
    assert all(reason.startswith("demo models") for reason in skipped)
    assert all(row["passed"] for row in tables["parity"])
    assert all(row["identical"] for row in tables["resume"])
    assert {row["engine"] for row in tables["engine"]} == {
        "ours",
        "PyTorch SDPA, padded",
        "torch.compile, padded",
    }
    assert max(float(row["apart"]) for row in tables["engine"]) < 1e-4
    assert (out / "report.md").read_text(encoding="utf-8").count("\n## ") == len(SECTIONS)
    assert (out / "report.png").stat().st_size > 10_000


SECTION = Section("made_up", "Made up", 60.0, 1.0, "Nothing.")


def run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float = 60.0) -> Findings:
    """Run a section whose process does `code` in place of a module; `record` is its recorder."""
    child = tmp_path / "made_up_child.py"
    begin = (
        "import sys\nfrom pathlib import Path\nfrom benchmarks.gpu_check.records import Recorder\n"
        "record = Recorder(Path(sys.argv[4]) / 'findings.jsonl')\n"
    )
    child.write_text(begin + code, encoding="utf-8")
    monkeypatch.setattr(processes, "CHILD", [sys.executable, str(child)])
    variables = environment(tmp_path / "site", tmp_path / "caches")
    return run_section(SECTION, "cpu", "small", tmp_path / "work", limit_s, variables, tmp_path / "log.txt")


def test_a_failed_step_is_recorded_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "with record.step('first'):\n    raise RuntimeError('no kernel')\n"
        "with record.step('second'):\n    record.row('t', a=1)\n"
    )
    found = run_code(tmp_path, monkeypatch, code)
    assert (found.status, found.errors, found.tables) == (
        FAILED,
        ["first: RuntimeError: no kernel"],
        {"t": [{"a": 1}]},
    )
    assert "no kernel" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_a_section_that_dies_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_code(tmp_path, monkeypatch, "record.row('t', a=1)\nimport os\nos.abort()\n")
    assert found.status == FAILED and found.tables == {"t": [{"a": 1}]}
    assert "-6" in found.error


def test_a_section_out_of_time_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CLEANING_S", 0.2)
    code = (
        "import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "record.row('t', pid=server.pid)\ntime.sleep(600)\n"
    )
    began = time.monotonic()
    found = run_code(tmp_path, monkeypatch, code, limit_s=5.0)
    assert time.monotonic() - began < 30
    assert found.status == TIMED_OUT and "after 5 s" in found.error
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # until its entry is gone
            os.kill(found.value("t", "pid"), 0)
            time.sleep(0.05)


def test_a_package_that_is_missing_leaves_its_section_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_code(tmp_path, monkeypatch, "with record.step('serve'):\n    import no_such_server\n")
    assert (found.status, found.skipped) == (SKIPPED, ["serve: no_such_server is not installed"])


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    record, findings = Recorder(file), Findings("a", "A")
    record.row("t", a=1)
    record.note("n")
    file.write_text(file.read_text(encoding="utf-8") + '{"table": "t", "ro', encoding="utf-8")
    read_into(findings, file)
    assert (findings.tables, findings.notes) == ({"t": [{"a": 1}]}, ["n"])


def test_sections_share_the_time_and_none_takes_what_later_ones_need() -> None:
    budget = 470.0
    left, given = budget, []
    for number in range(len(SECTIONS)):
        given.append(limit_s(number, left))
        left -= given[-1]
    assert left >= 0
    assert all(limit >= section.least_s for limit, section in zip(given, SECTIONS, strict=True))
    assert limit_s(len(SECTIONS) - 1, 0.4) == 0.4
    assert limit_s(0, budget) == SECTIONS[0].most_s < limit_s(0, budget, small=True)


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
    code = "import json, there, benchmarks.gpu_check; print(json.brought, there.x)"
    variables = environment(site, tmp_path / "caches")
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["True", "1"], done.stderr
    assert unpack(tmp_path / "nothing", site) == ([], [])


def test_the_report_is_there_when_the_check_is_stopped(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path), "--device", "cpu", "--small", "--sections", "environment"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as check:
        assert check.stdout is not None
        assert check.stdout.readline().startswith("Environment: at most")
        check.send_signal(signal.SIGTERM)
        assert check.wait(60) == 143
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["sections"] == []
    assert "| Environment | not run |" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_tables_have_every_column_once() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": True}, {"a": 12345.6, "c": "x|y"}]
    assert table(rows) == ["| a | b | c |", "|---|---|---|", "| 1 | yes |  |", "| 12,346 |  | x\\|y |"]


def test_a_page_is_written_of_nothing(tmp_path: Path) -> None:
    report = Report("command", "today", "cuda", False, 500.0)
    report.write(tmp_path)
    assert "| Parity | not run |" in (tmp_path / "report.md").read_text(encoding="utf-8")
