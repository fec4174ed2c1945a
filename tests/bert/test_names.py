"""Folders and names of the hub are told apart by one rule."""

from pathlib import Path

import pytest

from bert.names import HubName


@pytest.mark.parametrize(
    ("text", "repo", "revision", "last"),
    [
        ("org/name", "org/name", "", "name"),
        ("bert-base-uncased", "bert-base-uncased", "", "bert-base-uncased"),
        ("BAAI/bge-small-en-v1.5", "BAAI/bge-small-en-v1.5", "", "bge-small-en-v1.5"),
        ("org/name@v1.0", "org/name", "v1.0", "name"),
        ("org/name@refs/pr/4", "org/name", "refs/pr/4", "name"),
        ("name@" + "0" * 40, "name", "0" * 40, "name"),
    ],
)
def test_a_name_has_a_repository_and_a_revision(text: str, repo: str, revision: str, last: str) -> None:
    name = HubName.parse(text)
    assert name is not None
    assert (name.repo, name.revision, name.last_part, str(name)) == (repo, revision, last, text)


@pytest.mark.parametrize(
    "text", ["./name", "../name", "/a/name", "~/name", "a/b/c", "a//b", "a/", "", "a b", "a@"]
)
def test_what_can_only_be_a_path_is_no_name(text: str) -> None:
    assert HubName.parse(text) is None


def test_a_folder_that_exists_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubName.parse("runs/sentiment") is not None
    (tmp_path / "runs/sentiment").mkdir(parents=True)
    assert HubName.parse("runs/sentiment") is None


def test_a_commit_never_changes() -> None:
    assert HubName("a/b", "0123456789" * 4).is_pinned
    assert not HubName("a/b", "main").is_pinned and not HubName("a/b").is_pinned
