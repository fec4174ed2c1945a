"""A bundle is whole, unchanged, and of a schema that is read; or it is refused with the file's name."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bert.bundle import Bundle, Manifest, read_bundle, write_bundle
from bert.errors import BundleError, BundleIntegrityError
from bert.tasks.spec import TaskSpec

FILES = {"model.onnx": b"graph", "tokenizer.json": b"{}"}


def manifest(**changes: object) -> Manifest:
    spec = TaskSpec("ner", ("O", "B-PER", "I-PER"), max_tokens=64, stride=8)
    whole = Manifest("people", "3", spec, "fp32", "rows", 100, 32, 2, 64, session={"a": 1}, made_by="a test")
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "people", manifest(), FILES)


def edit(bundle: Bundle, **changes: object) -> None:
    file = bundle.folder / "bundle.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_is_written_is_read(bundle: Bundle) -> None:
    read = read_bundle(bundle.folder)
    assert read == bundle
    assert read.manifest.task.labels == ("O", "B-PER", "I-PER")
    assert set(read.manifest.files) == set(FILES)
    assert read.model_path.read_bytes() == b"graph" and read.tokenizer_path.read_bytes() == b"{}"


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused_by_name(name: str, bundle: Bundle) -> None:
    (bundle.folder / name).write_bytes(b"other")
    with pytest.raises(BundleIntegrityError, match=rf"{name} has sha256 .* the file was changed"):
        read_bundle(bundle.folder)
    assert read_bundle(bundle.folder, verify_hashes=False).manifest.name == "people"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_is_refused_by_name(name: str, verify: bool, bundle: Bundle) -> None:
    (bundle.folder / name).unlink()
    with pytest.raises(BundleIntegrityError, match=rf"{name} is missing"):
        read_bundle(bundle.folder, verify_hashes=verify)


def test_a_manifest_without_the_hash_of_a_file_is_refused(bundle: Bundle) -> None:
    edit(bundle, files={"model.onnx": bundle.manifest.files["model.onnx"]})
    with pytest.raises(BundleIntegrityError, match=r"tokenizer\.json"):
        read_bundle(bundle.folder)


def test_a_manifest_that_names_files_elsewhere_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"graph")
    edit(bundle, files={**bundle.manifest.files, "../outside": bundle.manifest.files["model.onnx"]})
    with pytest.raises(BundleIntegrityError, match="outside"):
        read_bundle(bundle.folder)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema_version": 2}, "schema_version is 2; this version reads 1"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"layout": "columns"}, "layout is 'columns'"),
        ({"colour": "red"}, r"unknown keys \['colour'\]"),
        ({"task": {"task": "ner"}}, "labels"),
        ({"task": None}, "incomplete or damaged"),
        ({"max_position_embeddings": 32}, r"max_tokens \(64\) must be at most"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(
    changes: dict[str, object], why: str, bundle: Bundle
) -> None:
    edit(bundle, **changes)
    with pytest.raises(BundleError, match=why):
        read_bundle(bundle.folder)


def test_a_folder_that_is_no_bundle_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"bundle\.json is missing; make the bundle with bert-export"):
        read_bundle(tmp_path)
    for content, why in ((b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "holds list")):
        (tmp_path / "bundle.json").write_bytes(content)
        with pytest.raises(BundleError, match=why):
            read_bundle(tmp_path)


def test_a_bundle_never_changes_unless_asked(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="is there already"):
        write_bundle(bundle.folder, manifest(version="4"), FILES)
    write_bundle(bundle.folder, manifest(version="4"), {**FILES, "model.onnx": b"new"}, overwrite=True)
    read = read_bundle(bundle.folder)
    assert read.manifest.version == "4" and read.model_path.read_bytes() == b"new"
    assert [file.name for file in bundle.folder.parent.iterdir()] == ["people"]


def test_a_bundle_needs_model_and_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"missing is tokenizer\.json"):
        write_bundle(tmp_path / "b", manifest(), {"model.onnx": b""})
    with pytest.raises(BundleError, match="no names"):
        write_bundle(tmp_path / "b", manifest(), {**FILES, "../x": b""})
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_bundle(tmp_path / "b", manifest(), FILES)
    assert not list(tmp_path.iterdir())


def test_the_old_bundle_stays_where_its_replacement_fails(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == bundle.folder and not self.name.endswith("-old"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(bundle.folder, manifest(version="4"), FILES, overwrite=True)
    assert read_bundle(bundle.folder).manifest.version == "3"
    assert [file.name for file in bundle.folder.parent.iterdir()] == ["people"]


def test_a_writer_killed_at_any_sync_leaves_no_half_bundle(tmp_path: Path) -> None:
    for survived in range(5):
        script = (
            "import os, signal, sys; from pathlib import Path; from tests.bert import test_bundle as t\n"
            f"left = {survived}\n"
            "def fsync(_):\n"
            "    global left\n"
            "    left -= 1\n"
            "    if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "os.fsync = fsync\n"
            f"t.write_bundle(Path({str(tmp_path / 'b')!r}), t.manifest(), t.FILES)\n"
        )
        code = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2]).returncode
        assert code == -9
        if (tmp_path / "b").exists():  # the last sync comes after the rename
            assert survived == 4 and read_bundle(tmp_path / "b")
    write_bundle(tmp_path / "b", manifest(), FILES, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


def test_reading_a_bundle_needs_nothing_heavy() -> None:
    script = (
        "import sys, bert.bundle; assert not {'onnx', 'torch', 'safetensors', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
