"""A bundle is whole, unchanged, and of a schema that is read; or it is refused with the file's name."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bert.bundle import Bundle, check_target, creation_time, read_bundle, write_bundle
from bert.errors import BundleError, BundleIntegrityError
from bert.manifest import Manifest, own_sha256
from bert.runtime import check_output
from bert.tasks.spec import TaskSpec

FILES = {"model.onnx": b"graph", "tokenizer.json": b"{}"}


def manifest(**changes: object) -> Manifest:
    spec = TaskSpec("ner", ("O", "B-PER", "I-PER"), max_tokens=64, stride=8)
    whole = Manifest("people", "3", spec, "fp32", "rows", 100, 32, 2, 64, made_by="a test")
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "people", manifest(), FILES)


def edit(bundle: Bundle, **changes: object) -> None:
    file = bundle.folder / "bundle.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(values | {"manifest_sha256": own_sha256(values)}))


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


@pytest.mark.parametrize("name", [*FILES, "bundle.json"])
def test_a_pipe_in_place_of_a_file_is_refused_by_name(name: str, bundle: Bundle) -> None:
    (bundle.folder / name).unlink()
    os.mkfifo(bundle.folder / name)
    with pytest.raises(BundleError, match=rf"{name} (cannot be read: it )?is not a regular file"):
        read_bundle(bundle.folder)
    assert creation_time(bundle.folder) == ""


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
        ({"schema_version": 1}, "schema_version is 1; this version reads 2"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"layout": "columns"}, "layout is 'columns'"),
        ({"colour": "red"}, r"unknown keys \['colour'\]"),
        ({"task": {"task": "ner"}}, "labels"),
        ({"task": None}, "incomplete or damaged"),
        ({"name": 5}, r"name \(5\) must be a text"),
        ({"name": ""}, r"name \(''\) must be a text"),
        ({"vocab_size": "100"}, r"vocab_size \('100'\) must be a whole number"),
        ({"hidden_size": True}, r"hidden_size \(True\) must be a whole number"),
        ({"files": ["model.onnx"]}, r"files \(\['model.onnx'\]\) must be an object"),
        ({"files": {"model.onnx": 5}}, r"the sha256 of model.onnx \(5\) must be a text"),
        (
            {"session": {"graph_optimization_level": "FOO"}},
            "graph_optimization_level is 'FOO'; known are ORT_",
        ),
        ({"session": {"graph_optimization_level": None}}, "graph_optimization_level is None"),
        ({"session": {"providers": "CPUExecutionProvider"}}, "must be a list of names"),
        ({"session": {"threads": 1}}, "session has the unknown key 'threads'"),
        ({"session": None}, r"session \(None\) must be an object"),
        ({"name": "ping"}, "a model cannot be called 'ping'"),
        ({"packing": {"foo": 1}}, "packing has the unknown key 'foo'; known are align_tokens, block_tokens"),
        (
            {"packing": {"align_tokens": 0}},
            r"packing.align_tokens \(0\) must be a whole number of at least 1",
        ),
        ({"packing": {"block_tokens": 1.5}}, r"packing.block_tokens \(1.5\) must be a whole number"),
        ({"attention": {"scores": 0}}, r"attention.scores \(0\) must be a whole number of at least 1"),
        (
            {"attention": {"window_layers": 99}},
            r"attention.window_layers \(99\) must be at most num_hidden_layers \(2\)",
        ),
        ({"max_position_embeddings": 32}, r"max_tokens \(64\) must be at most"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(
    changes: dict[str, object], why: str, bundle: Bundle
) -> None:
    edit(bundle, **changes)
    with pytest.raises(BundleError, match=why):
        read_bundle(bundle.folder)


@pytest.mark.parametrize("name", ["name", "task", "vocab_size"])
def test_a_manifest_without_a_key_says_which(name: str, bundle: Bundle) -> None:
    file = bundle.folder / "bundle.json"
    values = json.loads(file.read_text())
    del values[name]
    file.write_text(json.dumps(values))
    with pytest.raises(BundleError, match=rf"missing keys \['{name}'\]"):
        read_bundle(bundle.folder)


def test_labels_that_were_changed_by_hand_are_refused(bundle: Bundle) -> None:
    file = bundle.folder / "bundle.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values, indent=7))  # another layout says the same
    assert read_bundle(bundle.folder) == bundle
    values["task"]["labels"][1:] = ["I-PER", "B-PER"]
    file.write_text(json.dumps(values))
    with pytest.raises(BundleIntegrityError, match=r"bundle\.json was changed since it was written"):
        read_bundle(bundle.folder)
    del values["manifest_sha256"]
    file.write_text(json.dumps(values))
    with pytest.raises(BundleIntegrityError, match="has no manifest_sha256"):
        read_bundle(bundle.folder)


def test_a_bundle_is_of_another_graph_where_the_output_does_not_fit() -> None:
    tagger = manifest()
    check_output(tagger, "logits", 3)
    check_output(tagger, "logits", "labels")
    with pytest.raises(BundleError, match=r"gives logits of width 5; a ner model with 3 labels .* width 3"):
        check_output(tagger, "logits", 5)
    with pytest.raises(BundleError, match="gives embeddings of width 32; a ner model"):
        check_output(tagger, "embeddings", 32)
    check_output(manifest(task=TaskSpec("similarity", max_tokens=64)), "embeddings", 32)
    check_output(manifest(task=TaskSpec("fill_mask", max_tokens=64)), "logits", 100)
    check_output(manifest(task=TaskSpec("qa", max_tokens=64)), "logits", 2)


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
    with pytest.raises(BundleError, match="are not names"):
        write_bundle(tmp_path / "b", manifest(), {**FILES, "../x": b""})
    assert not list(tmp_path.iterdir())


def test_what_is_no_bundle_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"dear")
    with pytest.raises(
        BundleError, match=r"is not a bundle \(it has no bundle\.json\), so it is not replaced"
    ):
        write_bundle(tmp_path / "checkpoint", manifest(), FILES, overwrite=True)
    assert (tmp_path / "checkpoint" / "model.safetensors").read_bytes() == b"dear"
    (tmp_path / "empty").mkdir()
    write_bundle(tmp_path / "empty", manifest(), FILES, overwrite=True)


def test_a_place_that_cannot_be_written_to_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "b", tmp_path / "file"):
        with pytest.raises(BundleError, match=r"file"):
            check_target(folder, overwrite=True)
    check_target(tmp_path / "new" / "b", overwrite=False)
    assert not (tmp_path / "new").exists()


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BundleError, match="cannot be written: No space left on device"):
        write_bundle(tmp_path / "b", manifest(), FILES)
    assert not list(tmp_path.iterdir())


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
