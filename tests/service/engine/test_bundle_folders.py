"""The order of bundle folders, and the defaults that follow from it."""

import json
import shutil
from pathlib import Path

from bert.manifest import SHA256, own_sha256
from service.engine.bundle_folders import LeftOutFolders, bundle_folders, file_states
from service.engine.bundle_loader import load_models
from service.engine.model_registry import default_names
from tests.support.tiny import SPECS, write_tiny_bundle


def created(folder: Path, time: str) -> None:
    manifest = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    manifest["created"] = time
    manifest[SHA256] = own_sha256(manifest)
    (folder / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_a_bundle_that_is_added_does_not_become_the_default(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "sentiment", "sentiment", SPECS["mood"], 0)
    created(tmp_path / "sentiment", "2026-01-02T00:00:00+00:00")
    assert default_names(load_models([tmp_path], threads=1, verify_hashes=True, workers=1).names, {}) == {
        "classification": "sentiment"
    }
    write_tiny_bundle(tmp_path / "alarms", "alarms", SPECS["mood"], 1)
    created(tmp_path / "alarms", "2026-01-03T00:00:00+00:00")
    names = load_models([tmp_path], threads=1, verify_hashes=True, workers=1).names
    assert default_names(names, {}) == {"classification": "sentiment"}
    assert default_names(names, {"classification": "alarms"}) == {"classification": "alarms"}


def test_folders_are_taken_in_their_order_and_bundles_in_one_by_age(tmp_path: Path) -> None:
    for folder, time in (("a/new", "2026-02-02"), ("a/old", "2026-01-01"), ("b/oldest", "2025-01-01")):
        write_tiny_bundle(tmp_path / folder, folder[2:], SPECS["mood"], 0)
        created(tmp_path / folder, time)
    found = bundle_folders([tmp_path / "a", tmp_path / "b"])
    assert [folder.name for folder in found] == ["old", "new", "oldest"]


def test_bundles_that_were_known_keep_their_place_and_default_whatever_is_there(tmp_path: Path) -> None:
    for name, time in (("mood", "2026-01-01"), ("topics", "2026-02-02"), ("added", "2025-01-01")):
        write_tiny_bundle(tmp_path / name, name, SPECS["mood"], 0)
        created(tmp_path / name, time)
    known = {tmp_path / name: (name, "classification") for name in ("mood", "topics")}
    shutil.rmtree(tmp_path / "mood")
    loaded = load_models([tmp_path], threads=1, verify_hashes=True, workers=1, known=known)
    assert [each.name for each in loaded.models] == ["topics"]
    assert [(each.name, each.task) for each in loaded.left_out] == [("mood", "classification")]
    assert default_names(loaded.names, {}) == {"classification": "mood"}


def test_a_folder_is_tried_again_once_for_each_change_when_it_has_come_to_rest(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"half")
    folders = LeftOutFolders({tmp_path: file_states(tmp_path), tmp_path / "none": {}})
    assert folders.changed() == []
    for content in (b"half of", b"half of it"):
        file.write_bytes(content)
        assert folders.changed() == []  # it may still be copied
    assert folders.changed() == [tmp_path]
    assert folders.changed() == []
    file.write_bytes(b"all of it, and more")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "bundle.json").write_bytes(b"{}")
    assert folders.changed() == []
    folders.remove(tmp_path)
    assert folders.changed() == [tmp_path / "none"] and folders
    folders.remove(tmp_path / "none")
    assert not folders
