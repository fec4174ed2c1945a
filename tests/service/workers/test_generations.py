"""Versions that are kept: a model goes back to the one before, and an engine that starts again serves what was served."""

import json
import shutil
from pathlib import Path

import pytest

from bert.bundle import MANIFEST, MODEL, manifest_sha256
from bert.manifest import SHA256, own_sha256
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from service.workers.generations import Generations
from tests.support.fleet import Fleet, fleet, kill, soon
from tests.support.problems import kind
from tests.support.swaps import KEY, OTHER, Asking, answer, manage, put
from tests.support.tiny import SPECS, write_tiny_bundle


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / "served" / name)
    return tmp_path / "served"


def options(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        "--bundles",
        str(folder),
        "--admin-api-key",
        KEY,
        "--model-cache",
        str(folder.parent / "cache"),
        *more,
    )


def kept(folder: Path) -> list[Path]:
    return [place for place in (folder.parent / "cache" / "generations").glob("*") if place.is_dir()]


def restart_engine(running: Fleet) -> None:
    before = running.engine
    kill(before)
    soon(lambda: running.engine != before)
    running.all_ready()


def test_a_changed_bundle_is_found_by_itself(folder: Path, bundles: Path) -> None:
    with fleet("--bundles", str(folder), "--watch-bundles-s", "0.3", frontends=1) as running:
        asking, before = Asking(running), answer(running)
        with asking.all_the_time(1):
            put(folder / "mood", "mood", OTHER, 3)
            soon(lambda: answer(running) != before)
            shutil.copytree(bundles / "meaning", folder / "meaning")
            soon(lambda: running.post("/embed", {"text": "a film"}).status == 200)
            shutil.rmtree(folder / "mood")  # what is served does not need it
            soon(lambda: bool(running.get("/models").json["failed_loads"]))
        assert asking.statuses.keys() == {200}
        assert sorted(asking.answers) == sorted({before, answer(running)})


def test_a_model_goes_back_to_the_version_before_and_stays_there(folder: Path) -> None:
    with fleet(*options(folder, "--watch-bundles-s", "0.3"), frontends=1) as running:
        asking, before = Asking(running), answer(running)
        refused = manage(running, "mood", "rollback")
        assert (refused.status, kind(refused)) == (409, "load-failed")
        assert manage(running, "nope", "rollback").status == 404
        soon(lambda: len(kept(folder)) == 2)
        with asking.all_the_time(1):
            put(folder / "mood", "mood", OTHER, 3)
            soon(lambda: answer(running) != before)
            after = answer(running)
            soon(lambda: len(kept(folder)) == 3)
            assert manage(running, "mood", "rollback").status == 200
            assert answer(running) == before
            restart_engine(running)  # nothing brings the other one back unasked
            assert answer(running) == before
            assert manage(running, "mood", "rollback").status == 409  # one version is kept
            assert manage(running, "mood", "load").status == 200
            assert answer(running) == after
        assert asking.statuses.keys() == {200}
        seen = [before, after]
        for seed in (4, 5):
            put(folder / "mood", "mood", OTHER, seed)
            soon(lambda: answer(running) not in seen)
            seen.append(answer(running))
        soon(lambda: len(kept(folder)) == 3)  # served: two; before: one


def test_an_engine_that_starts_again_serves_what_was_served(folder: Path) -> None:
    with fleet(*options(folder), frontends=1) as running:
        asking, before = Asking(running), answer(running)
        soon(lambda: len(kept(folder)) == 2)
        assert manage(running, "names", "unload").status == 200
        with asking.all_the_time(2):
            put(folder / "mood", "mood", OTHER, 3)
            restart_engine(running)
            (folder / "mood" / MODEL).write_bytes(b"half")
            restart_engine(running)
        assert asking.statuses.keys() == {200} and asking.answers == [before]
        assert [each["name"] for each in running.get("/models").json["unloaded"]] == ["names"]
        assert manage(running, "names", "load").status == 200


def test_a_copy_is_whole_or_there_is_none(folder: Path, tmp_path: Path) -> None:
    sha256 = json.loads((folder / "mood" / MANIFEST).read_text())[SHA256]
    one, other = Generations(tmp_path / "kept"), Generations(tmp_path / "kept")
    assert not one.has(sha256) and not one.keep(folder / "names", sha256)
    assert list((tmp_path / "kept").iterdir()) == []
    assert one.keep(folder / "mood", sha256) and other.keep(folder / "mood", sha256)
    write_tiny_bundle(tmp_path / "new", "mood", SPECS["mood"], 9)
    shutil.copytree(tmp_path / "new", folder / "mood", dirs_exist_ok=True)  # written over in place
    assert json.loads((one.place(sha256) / MANIFEST).read_text())[SHA256] == sha256
    one.drop_others([])
    assert other.has(sha256)  # another service needs it
    other.drop_others([])
    assert not other.has(sha256)
    (tmp_path / "file").touch()
    assert not Generations(tmp_path / "file").keep(folder / "mood", sha256)


def test_a_bundle_of_an_older_program_is_known_again_by_the_hash_in_its_manifest(
    folder: Path, tmp_path: Path
) -> None:
    """Its manifest lacks a key that this program would write."""
    file = folder / "mood" / MANIFEST
    content = {
        key: value for key, value in json.loads(file.read_text()).items() if key not in (SHA256, "attention")
    }
    file.write_text(json.dumps({**content, SHA256: own_sha256(content)}))
    loader = BundleLoader(find_bundles([folder / "mood"]), threads=1)
    loader.open(folder / "mood")
    sha256 = loader.hashes[folder / "mood"]
    assert sha256 == own_sha256(content) == manifest_sha256(folder / "mood")
    assert Generations(tmp_path / "kept").keep(folder / "mood", sha256)
