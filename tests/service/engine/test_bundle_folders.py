"""The order of bundle folders, and the defaults that follow from it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from bert.manifest import SHA256, own_sha256
from service.engine.bundle_folders import (
    FileStates,
    FoundBundle,
    FoundBundles,
    file_states,
    find_bundles,
    settled,
)
from service.engine.bundle_loader import BundleLoader
from service.engine.models import Registry
from tests.support.tiny import SPECS, write_tiny_bundle


def created(folder: Path, time: str) -> None:
    manifest = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    manifest["created"] = time
    manifest[SHA256] = own_sha256(manifest)
    (folder / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")


def registry(found: FoundBundles, chosen: Mapping[str, str] | None = None) -> Registry:
    return Registry.of([*BundleLoader(found, threads=1).load(1).values()], chosen or {})


def test_a_bundle_that_is_added_does_not_become_the_default(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "sentiment", "sentiment", SPECS["mood"], 0)
    created(tmp_path / "sentiment", "2026-01-02T00:00:00+00:00")
    assert registry(find_bundles([tmp_path])).defaults == {"classification": "sentiment"}
    write_tiny_bundle(tmp_path / "alarms", "alarms", SPECS["mood"], 1)
    created(tmp_path / "alarms", "2026-01-03T00:00:00+00:00")
    found = find_bundles([tmp_path])
    assert registry(found).defaults == {"classification": "sentiment"}
    assert registry(found, {"classification": "alarms"}).defaults == {"classification": "alarms"}


def test_folders_are_taken_in_their_order_and_bundles_in_one_by_age(tmp_path: Path) -> None:
    for folder, time in (("a/new", "2026-02-02"), ("a/old", "2026-01-01"), ("b/oldest", "2025-01-01")):
        write_tiny_bundle(tmp_path / folder, folder[2:], SPECS["mood"], 0)
        created(tmp_path / folder, time)
    found = find_bundles([tmp_path / "a", tmp_path / "b"])
    assert [folder.name for folder in found] == ["old", "new", "oldest"]
    assert [each.name for each in found.values()] == ["old", "new", "oldest"]


def test_bundles_that_were_found_keep_their_place_and_default_whatever_is_there(tmp_path: Path) -> None:
    for name, time in (("mood", "2026-01-01"), ("topics", "2026-02-02"), ("added", "2025-01-01")):
        write_tiny_bundle(tmp_path / name, name, SPECS["mood"], 0)
        created(tmp_path / name, time)
    found = {tmp_path / name: FoundBundle(name, "classification") for name in ("mood", "topics")}
    shutil.rmtree(tmp_path / "mood")
    served = registry(found)
    assert list(served.models) == ["topics"]
    assert [(each.name, each.task) for each in served.left_out] == [("mood", "classification")]
    assert served.defaults == {"classification": "mood"}


def test_a_folder_is_tried_again_once_for_each_change_when_it_has_come_to_rest(tmp_path: Path) -> None:
    file, none = tmp_path / "model.onnx", tmp_path / "none"
    file.write_bytes(b"half")
    tried: dict[Path, FileStates] = {tmp_path: file_states(tmp_path), none: {}}
    seen: Mapping[Path, FileStates] = dict(tried)

    def to_try() -> list[Path]:
        nonlocal seen
        now = {folder: file_states(folder) for folder in tried}
        found, seen = settled(now, seen, tried), now
        tried.update({folder: now[folder] for folder in found})
        return found

    assert to_try() == []
    for content in (b"half of", b"half of it"):
        file.write_bytes(content)
        assert to_try() == []  # it may still be copied
    assert to_try() == [tmp_path]
    assert to_try() == []
    file.write_bytes(b"all of it, and more")
    none.mkdir()
    (none / "bundle.json").write_bytes(b"{}")
    assert to_try() == []
    assert set(to_try()) == {tmp_path, none}
    assert to_try() == []
