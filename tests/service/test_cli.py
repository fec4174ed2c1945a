"""How many processes a service is by default."""

import tempfile
from pathlib import Path

import pytest

from service import cli
from service.cli import count_frontends
from service.exit_signals import FAILURE
from service.settings import ServeSettings


@pytest.mark.parametrize(("cores", "frontends"), [(1, 1), (2, 1), (8, 1), (16, 2), (64, 8)])
def test_one_for_every_eight_cores(cores: int, frontends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "usable_cores", lambda: cores)
    assert count_frontends(ServeSettings()) == frontends
    assert count_frontends(ServeSettings(frontends=3)) == 3
    assert count_frontends(ServeSettings(frontends=0)) == 0


def test_one_process_where_there_is_no_folder_to_meet_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert count_frontends(ServeSettings()) == 0
    assert count_frontends(ServeSettings(frontends=1)) == 1


def test_frontends_that_have_nowhere_to_meet_are_refused_in_a_sentence(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert cli.main(["--bundles", str(bundles / "mood"), "--port", "0", "--frontends", "2"]) == FAILURE
    told = capsys.readouterr().err
    assert "frontends (2) need a folder" in told and str(tmp_path / "nowhere") in told
