"""The benchmarks of overload and of long running, in small."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.serve import overload, soak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
SETTINGS = "--engine-slots 1 --batch-tokens 128 --log-level error"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny import SPECS, write_tiny_bundle

    folder = tmp_path_factory.mktemp("bundles") / "names"
    write_tiny_bundle(folder, "names", SPECS["names"], 0)
    return folder


def test_a_storm_has_a_share_of_the_capacity(
    names: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "6", "--seconds", "1", "--rounds", "1", "--only", "storm", "--service", SETTINGS]
    assert overload.main([str(names), *options, "--log", str(tmp_path / "log.txt")]) == 0
    shown = capsys.readouterr().out
    assert "'200': " in shown and ": share " in shown


def test_a_soak_finds_nothing_left(names: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--minutes", "0.05", "--times", "2", "--service", SETTINGS, "--out", str(tmp_path / "soak")]
    soak.main([str(names), *options])
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["summary"]["answers"]["200"] > 0
    assert len(result["seconds"]) >= 3
    assert not [each for each in result["summary"]["faults found"] if "gauges" in each]
    assert "slowest /health/live" in capsys.readouterr().out
