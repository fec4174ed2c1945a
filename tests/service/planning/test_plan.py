"""`bert-serve --plan` with a real bundle, a real service and real requests. No test looks at how fast they are."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from service.cli import main
from service.planning import command, simulation
from service.system import FAILURE, INTERRUPTED
from tests.support.files import Write
from tests.support.live import eventually
from tests.support.process import children, started

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the CPU time of a service is read from /proc"
)
USAGE_ERROR = 2
LOADS = len(command.PERCENTS)


@pytest.fixture
def plan(bundles: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a plan that need a rate and a time."""
    monkeypatch.setattr(command, "TRIAL_S", 0.3)
    monkeypatch.setattr(simulation, "TEXTS", 0)
    bodies = [{"text": "Anna lives in Rome"}, {"text": ["Rome", "Rome " * 100]}]
    file = write("requests.jsonl", "".join(f"{json.dumps(body)}\n" for body in bodies))
    return ["--plan", "--bundles", str(bundles / "names"), "--requests", str(file), "--no-keep-tuning"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_says_how_many_replicas(plan: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, *plan, "--requests-per-s", "100000", "--p99-ms", "60000")
    capacity = found["loads"][-1]["requests_per_s"] / found["loads"][-1]["busy"]
    assert found["engine_ms"] > 0 and len(found["loads"]) == LOADS
    # Whatever the p99, a replica answers no more than it can.
    assert found["replicas"] >= 100_000 / capacity > found["replicas"] * 0.9 - 1
    assert found["each"]["requests_per_s"] == pytest.approx(100_000 / found["replicas"])
    helm = found["helm"]
    assert (
        helm["scaling.min"] == found["replicas"]
        and 0 < helm["scaling.cpu"] <= 100
        and helm["scaling.queueTokens"] >= 0
    )


def test_the_table_has_a_line_for_each_load(
    plan: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What keeps others out, or refuses a load, does not keep out the plan's own requests.
    guards = ["--api-key", "correct-horse", "--uds", str(tmp_path / "s"), "--max-queue-tokens", "512"]
    assert main([*plan, *guards, "--requests-per-s", "100000", "--p99-ms", "60000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "%" in line.split()[0]]
    assert len(rows) == LOADS
    needed = [int(row[-1]) for row in rows]
    assert needed == sorted(needed, reverse=True), "the busier each may be, the fewer are needed"
    assert "requests/s, 99 of 100 within 60000 ms:" in lines[-2] and lines[-1].startswith("helm --set cpus=")


def test_a_time_that_no_number_of_replicas_meets_is_refused(
    plan: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*plan, "--requests-per-s", "1", "--p99-ms", "0.001"]) == USAGE_ERROR
    told = capsys.readouterr().err
    assert "p99_ms (0.001) must be at least" in told and "make no request faster" in told


def test_requests_that_the_service_refuses_end_the_plan(
    plan: list[str], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = write("wrong.jsonl", '{"texts": "Rome"}\n')
    assert main([*plan, "--requests", str(wrong), "--requests-per-s", "1", "--p99-ms", "9"]) == FAILURE
    told = capsys.readouterr().err
    assert "/ner answered 422" in told and "texts" in told


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--requests-per-s", "0"], "requests_per_s: input should be greater than 0"),
        (["--requests", "nowhere.jsonl"], "requests (nowhere.jsonl) cannot be read"),
        (["--bundles", ".."], "takes one bundle"),
        (["--requests", "empty"], "must have at least one line"),
    ],
)
def test_what_cannot_be_planned_is_said(
    arguments: list[str],
    rule: str,
    plan: list[str],
    bundles: Path,
    write: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {"..": str(bundles), "empty": str(write("empty", ""))}
    given = [known.get(argument, argument) for argument in arguments]
    assert main([*plan, "--requests-per-s", "1", "--p99-ms", "9", *given]) == USAGE_ERROR
    assert rule in capsys.readouterr().err


def test_ctrl_c_ends_the_service_that_is_measured_too(bundles: Path, write: Write) -> None:
    file = str(write("requests.jsonl", '{"text": "Rome"}\n'))
    arguments = [
        "--bundles",
        str(bundles / "names"),
        "--requests",
        file,
        "--requests-per-s",
        "1",
        "--p99-ms",
        "9",
    ]
    with started("--plan", *arguments, "--no-keep-tuning") as process:
        while not (spawned := children(process.popen.pid)):
            assert process.popen.poll() is None, process.error()
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(120) == INTERRUPTED
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in spawned))
