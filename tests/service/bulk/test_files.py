"""Inputs that are no files, and outputs that must not be written or have no place."""

import errno
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.bulk import journal
from service.bulk.command import SOME_BAD, main
from service.bulk.journal import Journal
from tests.support.bulk import COMMAND, read_rows, run, write_rows

ROWS: list[dict[str, Any]] = [{"text": "dull"}, {"text": None}, {"text": "warm"}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", ROWS)


def test_the_file_of_bad_rows_is_neither_input_nor_output(
    bundles: Path, source: Path, tmp_path: Path, capsys: Any
) -> None:
    out, before = tmp_path / "out.jsonl", source.read_bytes()
    (tmp_path / "linked").symlink_to(source)
    os.link(source, tmp_path / "hard")
    (tmp_path / "folder").symlink_to(tmp_path)
    taken = tmp_path / "notes.txt"
    taken.write_text("mine")
    cases = {
        str(source): "is the input itself",
        str(tmp_path / "linked"): "is the input itself",
        str(tmp_path / "hard"): "is the input itself",
        str(tmp_path / "folder/in.jsonl"): "is the input itself",
        str(out): "is the output itself",
        str(tmp_path / "folder/out.jsonl"): "is the output itself",
        str(tmp_path): "is a folder",
        str(tmp_path / "no/bad.jsonl"): "there is no folder",
        str(tmp_path / "out.jsonl.partial/bad.jsonl"): "there is no folder",
        "/dev/null": "is no file",
        str(taken): "is there already: --overwrite replaces it",
    }
    for bad, reason in cases.items():
        assert main([str(bundles / "mood"), str(source), "--out", str(out), "--bad", bad]) == 2
        assert reason in capsys.readouterr().err, bad
    for bad in (str(source), str(taken)):
        assert main([str(bundles / "mood"), str(source), "--out", "-", "--bad", bad]) == 2
    assert source.read_bytes() == before
    assert taken.read_text() == "mine"
    assert not out.exists()


def test_rows_of_a_pipe_by_path_are_all_there(bundles: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = ["--out", out, "--input-format", "jsonl", "--quiet"]
    content = source.read_bytes()
    assert run(bundles / "mood", "/dev/stdin", *arguments, stdin=content).returncode == SOME_BAD
    assert [row["text"] for row in read_rows(out)] == ["dull", "warm"]
    out.unlink()
    before, after = shlex.join([*COMMAND, str(bundles / "mood")]), shlex.join(map(str, arguments))
    command = f"{before} <(cat {shlex.quote(str(source))}) {after}"
    assert subprocess.run(["bash", "-c", command], timeout=60).returncode == SOME_BAD
    assert [row["text"] for row in read_rows(out)] == ["dull", "warm"]


def test_bad_rows_reach_another_file_system(
    bundles: Path, source: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    rename = os.replace

    def between_disks(one: Path, other: Path) -> None:
        if Path(other).parent.name == "disk" and Path(one).parent != Path(other).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(one, other)

    monkeypatch.setattr(os, "replace", between_disks)
    (tmp_path / "disk").mkdir()
    out, bad = tmp_path / "out.jsonl", tmp_path / "disk/bad.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out), "--bad", str(bad), "--quiet"]
    assert main(arguments) == SOME_BAD
    assert [row["row"] for row in read_rows(bad)] == [2]
    assert [path.name for path in bad.parent.iterdir()] == ["bad.jsonl"]
    assert not Path(f"{out}.partial").exists()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_kill_between_the_renames_spoils_nothing(
    bundles: Path, source: Path, tmp_path: Path, monkeypatch: Any, ending: str, step: int
) -> None:
    out = tmp_path / f"out.{ending}"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]
    moves = list[Path]()
    move = journal._move

    def killed(one: Path, other: Path) -> None:
        moves.append(other)
        if len(moves) == step:
            raise KeyboardInterrupt
        move(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_move", killed)
        if step == 3:
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            main(arguments)
        else:
            with pytest.raises(KeyboardInterrupt):
                main(arguments)
    assert Path(f"{out}.partial").exists()
    assert main(arguments) == SOME_BAD
    assert [row["text"] for row in read_rows(out)] == ["dull", "warm"]
    assert [row["row"] for row in read_rows(Path(f"{out}.bad.jsonl"))] == [2]
    assert not Path(f"{out}.partial").exists()


def test_an_output_that_was_cut_is_not_filled_with_zeros(
    bundles: Path, source: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out), "--max-bad", "0"]
    assert main(arguments) == 1
    folder = Journal(out, out)
    assert json.loads((folder.folder / "progress.json").read_text())["rows_bytes"]
    folder.rows.write_bytes(b"")
    assert main(arguments[:-2]) == 2
    assert "is shorter than recorded: begin again with --restart" in capsys.readouterr().err


def test_a_folder_without_a_record_lets_no_output_be_replaced(
    bundles: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    Path(f"{out}.partial").mkdir()
    assert main([str(bundles / "mood"), str(source), "--out", str(out)]) == 2
    assert out.read_text() == "mine"
