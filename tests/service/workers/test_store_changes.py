"""An object store that changes, or is away, while its bundles are served."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert.bundle import MANIFEST, MODEL
from tests.support.live import Live, eventually, serving
from tests.support.shelf import Shelf, fetched, renew
from tests.support.swaps import KEY

TEXT = {"text": "a warm film was dull", "model": "mood"}


@pytest.fixture
def bucket(bundles: Path, tmp_path: Path) -> Path:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / "bucket/models" / name)
    Shelf.open_at(tmp_path)
    return tmp_path / "bucket/models"


@pytest.fixture
def watched(bucket: Path, tmp_path: Path) -> Iterator[Live]:
    """A service that looks at the store ten times a second."""
    cache = tmp_path / "cache"
    with serving(
        bundles=fetched(cache).bundles, model_cache=cache, watch_bundles_s=0.1, admin_api_key=KEY
    ) as running:
        yield running


def version(live: Live) -> str:
    return live.post("/classify", TEXT).headers["x-model-version"]


def failed(live: Live) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in live.get("/models").json["failed_loads"]}


def away(path: str) -> None:
    raise ConnectionError("the store is away")


def test_a_new_version_and_a_new_bundle_are_served_by_themselves(
    watched: Live, bucket: Path, bundles: Path
) -> None:
    renew(bucket / "mood", 7)
    eventually(lambda: version(watched) == "2")
    shutil.copytree(bundles / "topics", bucket / "topics")
    eventually(lambda: watched.post("/classify", {**TEXT, "model": "topics"}).status == 200)
    assert failed(watched) == {}


def test_a_store_that_is_away_leaves_what_is_served(watched: Live, bucket: Path) -> None:
    Shelf.fault = staticmethod(away)
    eventually(lambda: len(failed(watched)) == 2)
    assert "shelf://bucket/models cannot be fetched: the store is away" in failed(watched)["mood"]
    assert watched.metric("bert_model_load_failed", model="mood") == 1
    assert (version(watched), watched.get("/health/ready").status) == ("1", 200)
    refused = watched.post("/models/mood/load", {}, x_api_key=KEY)
    assert (refused.status, refused.json["type"]) == (409, "urn:bert-serve:load-failed")
    assert "the store is away" in refused.json["detail"]
    Shelf.open_at(Shelf.root)
    eventually(lambda: failed(watched) == {})
    assert watched.metric("bert_model_load_failed", model="mood") == 0
    renew(bucket / "mood", 7)
    eventually(lambda: version(watched) == "2")


def test_a_version_whose_manifest_came_first_is_served_once_it_is_whole(
    watched: Live, bucket: Path, tmp_path: Path
) -> None:
    shutil.copytree(bucket / "mood", tmp_path / "other/models/mood")
    renew(tmp_path / "other/models/mood", 7)
    Shelf.taken()
    shutil.copyfile(tmp_path / "other/models/mood" / MANIFEST, bucket / "mood" / MANIFEST)
    eventually(lambda: "mood" in failed(watched))
    assert "mood/model.onnx has not the sha256 of its bundle.json" in failed(watched)["mood"]
    assert (set(failed(watched)), version(watched)) == ({"mood"}, "1")
    looks = Shelf.read.count("bucket/models/names/bundle.json")
    eventually(lambda: Shelf.read.count("bucket/models/names/bundle.json") >= looks + 3)
    assert Shelf.read.count("bucket/models/mood/model.onnx") == 1, "it is not fetched again before it changes"
    shutil.copyfile(tmp_path / "other/models/mood" / MODEL, bucket / "mood" / MODEL)
    eventually(lambda: version(watched) == "2")
    assert failed(watched) == {}


def test_a_version_is_loaded_on_request(bucket: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serving(bundles=fetched(cache).bundles, model_cache=cache, admin_api_key=KEY) as running:
        eventually(lambda: len(list((cache / "generations").glob("[!.]*"))) == 2)  # what is served is copied
        renew(bucket / "mood", 7)
        assert version(running) == "1"
        assert running.post("/models/mood/load", {}, x_api_key=KEY).status == 200
        assert version(running) == "2"
        assert running.post("/models/mood/rollback", {}, x_api_key=KEY).status == 200
        assert version(running) == "1"
