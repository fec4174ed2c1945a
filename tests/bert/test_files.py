"""Only regular files are read; whatever happens between writing and renaming, a folder is the old one or the new one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert.files import absence, atomic_dir, atomic_file, atomic_write, put_back, read_regular

ROOT = Path(__file__).parents[2]


def write(folder: Path, content: bytes, *, replace_old: bool = True) -> None:
    with atomic_dir(folder, replace_old=replace_old) as aside:
        (aside / "file").write_bytes(content)


def killed(folder: Path, before: str) -> None:
    """Write "new" in another process, killed before the call of Path.rename that takes a name of that kind."""
    script = (
        "import os, signal; from pathlib import Path; from tests.bert import test_files as t\n"
        "rename = Path.rename\n"
        "def until(self, target):\n"
        f"    if {before!r} in self.name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rename(self, target)\n"
        "Path.rename = until\n"
        f"t.write(Path({str(folder)!r}), b'new')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -signal.SIGKILL


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "b", b"old")
    return tmp_path / "b"


def test_the_old_one_comes_back_after_a_kill_between_the_renames(folder: Path) -> None:
    killed(folder, before=".partial-")
    assert not folder.exists() and len(names(folder.parent)) == 2
    put_back(folder)
    assert (folder / "file").read_bytes() == b"old"
    write(folder, b"newer")
    assert (folder / "file").read_bytes() == b"newer" and names(folder.parent) == ["b"]


def test_a_new_one_clears_the_way_without_losing_the_old_one(folder: Path) -> None:
    killed(folder, before=".partial-")
    with pytest.raises(KeyError), atomic_dir(folder):
        assert (folder / "file").read_bytes() == b"old"
        raise KeyError
    assert (folder / "file").read_bytes() == b"old" and names(folder.parent) == ["b"]


def test_what_a_killed_process_left_of_tidying_goes(folder: Path) -> None:
    folder.with_name(".b.previous").mkdir()
    (folder.parent / ".b.previous" / "half").write_text("")
    put_back(folder)
    assert names(folder.parent) == ["b"] and (folder / "file").read_bytes() == b"old"


def test_left_overs_of_the_same_process_number_are_no_hindrance(tmp_path: Path) -> None:
    """In a container every export is process 1: a number says nothing of who still runs."""
    (tmp_path / f".b.partial-{os.getpid()}").mkdir()
    write(tmp_path / "b", b"new")
    assert names(tmp_path) == ["b"]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "b") as first:
        (first / "file").write_bytes(b"first")
        write(tmp_path / "b", b"second")
        assert first.is_dir()
    assert (tmp_path / "b" / "file").read_bytes() == b"first" and names(tmp_path) == ["b"]


def test_other_folders_left_overs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".bb.partial-1").mkdir()
    write(tmp_path / "b", b"new")
    write(tmp_path / "[b]", b"new")
    assert names(tmp_path) == [".bb.partial-1", "[b]", "b"]


def test_the_old_one_stays_where_its_replacement_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        write(folder, b"new")
    assert (folder / "file").read_bytes() == b"old" and names(folder.parent) == ["b"]


def test_a_folder_is_readable_as_the_users_others_are(folder: Path) -> None:
    (folder.parent / "plain").mkdir()
    assert folder.stat().st_mode == (folder.parent / "plain").stat().st_mode


def test_a_folder_that_another_process_made_meanwhile_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), atomic_dir(tmp_path / "b", replace_old=False):
        write(tmp_path / "b", b"sooner")
    assert (tmp_path / "b" / "file").read_bytes() == b"sooner" and names(tmp_path) == ["b"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in ("old", "ü", b"\xff\x00"):
        atomic_write(tmp_path / "f", content)
        assert (tmp_path / "f").read_bytes() == (content.encode() if isinstance(content, str) else content)
        assert names(tmp_path) == ["f"]


def test_a_file_stays_as_it_was_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "f", "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "f") as stream:
        stream.write(b"half")
        raise KeyboardInterrupt

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        atomic_write(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old" and names(tmp_path) == ["f"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_whoever_may_read_the_folder_may_read_its_files(folder: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_dir(folder) as aside:
            (aside / "weights").touch(mode=0o600)
    finally:
        os.umask(before)
    assert (folder / "weights").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_not_a_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](file)
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular(file)
    assert absence(file) == "is not a regular file"


def test_a_link_to_a_regular_file_is_read_and_one_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("c")
    assert read_regular(tmp_path / "b") == b"text"
    assert absence(tmp_path / "c") == "is a link to nothing" and absence(tmp_path / "d") == "is missing"


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and at most 268,435,456 are read"):
        read_regular(tmp_path / "a.json")
