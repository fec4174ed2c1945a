"""`bert-serve --tune`, as an operator runs it."""

import re
import signal
from pathlib import Path

import pytest

from service.cli import main
from tests.support.process import started


def test_the_curve_of_each_shape_is_printed(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tune", "--bundles", str(bundles), "--engine-slots", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 engine slots of" in out
    assert re.search(r"mood.*: fp32, \d+ layers of \d+", out), "models of one shape share a table"
    assert re.search(r"^ +16 +[\d.]+ +[\d,]+$", out, re.MULTILINE)
    assert "a lone text takes one slot" in out and "measured in" in out


def test_several_slots_are_measured_beside_one(
    bundles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.tune.usable_cores", lambda: 2)
    assert main(["--tune", "--bundles", str(bundles / "mood"), "--batch-tokens", "99"]) == 0
    out = capsys.readouterr().out
    assert "2 engine slots of 1 threads" in out and "a lone text takes" in out
    assert "batches of 99 tokens (batch_tokens)" in out


def test_bundles_that_cannot_be_loaded_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tune", "--bundles", str(tmp_path)]) == 1
    assert "holds no bundle" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(bundles: Path) -> None:
    with started("--bundles", str(bundles), "--tune", "--no-keep-tuning") as process:
        process.until("engine slots of")
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(120) == 130
