"""How many processes a service is by default."""

import tempfile
from pathlib import Path

import pytest

from service import cli
from service.cli import count_frontends
from service.settings import ServeSettings
from service.system import FAILURE


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
    restored: None,
    bundles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert cli.main(["--bundles", str(bundles / "mood"), "--port", "0", "--frontends", "2"]) == FAILURE
    told = capsys.readouterr().err
    assert "frontends (2) need a folder" in told and str(tmp_path / "nowhere") in told


def test_vertex_gives_the_port(tmp_path: Path) -> None:
    found = cli.with_cloud_defaults(ServeSettings(), {"AIP_HTTP_PORT": "8123"}, is_sagemaker=False)
    assert (found.host, found.port) == ("0.0.0.0", 8123)
    given = ServeSettings(host="127.0.0.1", port=9000)
    assert cli.with_cloud_defaults(given, {"AIP_HTTP_PORT": "8123"}, is_sagemaker=True) == given
    assert cli.with_cloud_defaults(ServeSettings(), {}, is_sagemaker=False) == ServeSettings()


def test_sagemaker_serves_its_folder_on_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SAGEMAKER_MODEL", tmp_path)
    found = cli.with_cloud_defaults(ServeSettings(), {}, is_sagemaker=True)
    assert (found.host, found.port, found.bundles) == ("0.0.0.0", 8080, [tmp_path])
    named = cli.with_cloud_defaults(ServeSettings(bundles=[Path("own")]), {}, is_sagemaker=True)
    assert named.bundles == [Path("own")]


def test_serve_may_be_the_first_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    assert ended.value.code == 0 and "--wires" in capsys.readouterr().out
