"""The order of bundle folders, and the defaults that follow from it."""

import json
from pathlib import Path

from bert.manifest import SHA256, own_sha256
from service.engine.bundle_folders import bundle_folders
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
