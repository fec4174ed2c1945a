"""Bundles of an object store: what is fetched, what is not fetched again, and what goes wrong on the way."""

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import MANIFEST, MODEL, TOKENIZER, read_bundle
from bert.errors import BundleError
from service.engine.bundle_folders import find_bundles
from service.exports import store
from service.exports.store import stores_of, url_of, with_fetched
from service.settings import ServeSettings
from tests.support.disks import small_disk
from tests.support.shelf import URL, Shelf, fetched, renew
from tests.support.swaps import other_tokenizer
from tests.support.tiny import SPECS, write_tiny_bundle


@pytest.fixture
def bucket(bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two bundles in a store, and no pause before another try."""
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / "bucket/models" / name)
    Shelf.open_at(tmp_path)
    monkeypatch.setattr(store, "PAUSES_S", (0.001, 0.001))
    return tmp_path / "bucket/models"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def contents(cache: Path) -> set[str]:
    return {file.name for file in (cache / "store/files").iterdir()}


def hashes(*bundles: Path) -> set[str]:
    return {sha256 for each in bundles for sha256 in read_bundle(each).manifest.files.values()}


@pytest.mark.parametrize(
    ("given", "url"),
    [("s3://bucket/a/ner", "s3://bucket/a/ner"), ("gs://b/x/", "gs://b/x"), ("bundles", ""), ("/s3:/b", "")],
)
def test_a_url_among_folders_is_seen(given: str, url: str) -> None:
    (path, other) = ServeSettings(bundles=f"{given},other").bundles
    assert (url_of(path), url_of(other)) == (url, "")


def test_folders_need_no_store(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    settings = ServeSettings(bundles=[bundles])
    assert with_fetched(settings) is settings
    assert stores_of(settings) == []


def test_bundles_of_a_url_are_found_as_in_a_folder(bucket: Path, cache: Path) -> None:
    (folder,) = fetched(cache).bundles
    assert {each.name: place.name for place, each in find_bundles([folder], strict=True).items()} == {
        "mood": "mood",
        "names": "names",
    }
    assert contents(cache) == hashes(bucket / "mood", bucket / "names")


def test_one_bundle_may_lie_at_a_url(bucket: Path, cache: Path) -> None:
    settings = fetched(cache, f"{URL}/names", f"{URL}/mood")
    assert [each.name for each in find_bundles(settings.bundles).values()] == ["names", "mood"]
    assert [each.url for each in stores_of(settings)] == [f"{URL}/names", f"{URL}/mood"]


def test_a_second_start_fetches_nothing_but_the_manifests(bucket: Path, cache: Path) -> None:
    fetched(cache)
    Shelf.taken()
    fetched(cache)
    assert Shelf.taken() == [MANIFEST, MANIFEST]


def test_a_content_is_fetched_once_whatever_bundles_have_it(bucket: Path, cache: Path) -> None:
    fetched(cache)
    taken = [name for name in Shelf.taken() if name != MANIFEST]
    assert len(taken) == len(hashes(bucket / "mood", bucket / "names")) < 2 * len(hashes(bucket / "mood"))


def test_of_a_new_version_only_what_changed_is_fetched_and_the_rest_goes(bucket: Path, cache: Path) -> None:
    (folder,) = fetched(cache).bundles
    Shelf.taken()
    renew(bucket / "mood", 7)
    fetched(cache)
    assert Shelf.taken() == [MANIFEST, MANIFEST, MODEL]
    assert read_bundle(folder / "mood").manifest.version == "2"
    assert contents(cache) == hashes(bucket / "mood", bucket / "names"), "the old graph is gone"


def test_services_that_start_at_once_fetch_each_file_once(bucket: Path, cache: Path) -> None:
    def slow(path: str) -> None:
        time.sleep(0.05)

    Shelf.fault = staticmethod(slow)
    with ThreadPoolExecutor(4) as pool:
        folders = {each.bundles[0] for each in pool.map(lambda _: fetched(cache), range(4))}
    (folder,) = folders
    assert len(find_bundles([folder], strict=True)) == 2
    assert len([name for name in Shelf.taken() if name != MANIFEST]) == len(contents(cache))


def test_a_cached_file_that_is_damaged_is_fetched_again_at_a_start(bucket: Path, cache: Path) -> None:
    (folder,) = fetched(cache).bundles
    Shelf.taken()
    graph = folder / "mood" / MODEL
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)  # in the cache too: it is one file
    fetched(cache)
    assert Shelf.taken() == [MANIFEST, MANIFEST, MODEL]
    assert read_bundle(folder / "mood")


def test_what_a_killed_process_left_is_removed(bucket: Path, cache: Path) -> None:
    (cache / "store/files").mkdir(parents=True)
    (cache / "store/files/.abc.partial").write_bytes(b"half")
    fetched(cache)
    assert contents(cache) == hashes(bucket / "mood", bucket / "names")


def test_a_file_that_is_not_the_manifests_is_refused_by_name(bucket: Path, cache: Path) -> None:
    graph = bucket / "mood" / MODEL
    graph.write_bytes(graph.read_bytes()[:-100])
    with pytest.raises(
        BundleError, match=r"shelf://bucket/models cannot be fetched: .*mood/model.onnx has not the"
    ):
        fetched(cache, strict=True)
    assert Shelf.taken().count(MODEL) == 2, (
        "each of both models once: damaged as it lies, it is not fetched again"
    )


def test_a_bundle_that_was_never_whole_keeps_no_other_from_being_served(
    bucket: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = bucket / "mood" / MODEL
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-100])
    settings = fetched(cache)
    assert "without mood the others are served" in caplog.text
    (folder,), (served,) = settings.bundles, stores_of(settings)
    assert {each.name: bool(each.provider) for each in find_bundles([folder]).values()} == {
        "mood": False,
        "names": True,
    }
    graph.write_bytes(whole)
    assert served.fetch() == {}
    assert read_bundle(folder / "mood")
    graph.write_bytes(b"")
    with pytest.raises(BundleError, match=r"mood/model.onnx has not the"):
        fetched(cache / "other", f"{URL}/mood")


def test_what_was_fetched_of_a_bundle_that_fails_is_not_fetched_again(bucket: Path, cache: Path) -> None:
    tokenizer, pieces = other_tokenizer()
    shutil.rmtree(bucket / "mood")
    write_tiny_bundle(bucket / "mood", "mood", SPECS["mood"], 1, tokenizer_json=tokenizer, vocab_size=pieces)
    (bucket / "mood" / TOKENIZER).write_text("{}")
    with pytest.raises(BundleError, match=r"mood/tokenizer.json has not the sha256"):
        fetched(cache, strict=True)
    assert Shelf.taken().count(MODEL) == 2, "that of each bundle once, in three tries"


def test_a_file_that_is_cut_off_on_the_way_is_fetched_again(
    bucket: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = Shelf.get_file, [True]

    def get_file(self: Shelf, rpath: str, lpath: Any, *more: Any, **options: Any) -> None:
        whole(self, rpath, lpath)
        if rpath.endswith("mood/model.onnx") and cut.pop():
            cut.append(False)
            Path(lpath).write_bytes(Path(lpath).read_bytes()[:-100])

    monkeypatch.setattr(Shelf, "get_file", get_file)
    (folder,) = fetched(cache).bundles
    assert read_bundle(folder / "mood")


def away(path: str) -> None:
    raise ConnectionError("the store is away")


def test_a_store_that_comes_back_is_waited_for(
    bucket: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = [True, True]

    def fault(path: str) -> None:
        if left and left.pop():
            away(path)

    Shelf.fault = staticmethod(fault)
    with caplog.at_level("WARNING", "bert_serve"):
        fetched(cache)
    assert "the store is away; it is tried again in 0.001 s" in caplog.text


def test_a_store_that_stays_away_ends_a_first_start(bucket: Path, cache: Path) -> None:
    Shelf.fault = staticmethod(away)
    with pytest.raises(BundleError, match=f"{URL} cannot be fetched: the store is away"):
        fetched(cache)


def test_a_store_that_stays_away_does_not_end_a_later_start(
    bucket: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = fetched(cache)
    Shelf.fault = staticmethod(away)
    assert fetched(cache) == before
    assert "the store is away; it is served as it was fetched before" in caplog.text
    with pytest.raises(BundleError, match="away"):
        fetched(cache, strict=True)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("shelf://nowhere/models", r"nowhere/models \(nothing is there\)"),
        ("shelf://bucket/models/none", r"bucket/models/none \(nothing is there\)"),
        ("elsewhere://bucket/models", "Protocol not known: elsewhere"),
    ],
)
def test_a_url_with_nothing_there_ends_the_start_at_once(
    url: str, reason: str, bucket: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PAUSES_S", (3600,))
    with pytest.raises(BundleError, match=f"{url} cannot be fetched: {reason}"):
        fetched(cache, url)


def test_without_the_extra_the_error_names_it(
    bucket: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BundleError, match=r"pip install 'bert-train-serve\[store\]'"):
        fetched(cache)


def test_a_folder_whose_upload_has_not_ended_is_passed_over(bucket: Path, cache: Path) -> None:
    (bucket / "mood" / MANIFEST).rename(bucket / "aside")
    (folder,) = fetched(cache).bundles
    assert [each.name for each in find_bundles([folder]).values()] == ["names"]
    (bucket / "names" / MANIFEST).unlink()
    with pytest.raises(BundleError, match="no bundle is there: upload one, its bundle"):
        fetched(cache / "other")


def test_a_bundle_that_the_store_has_no_more_goes_at_the_next_start(bucket: Path, cache: Path) -> None:
    settings = fetched(cache)
    (folder,), (served,) = settings.bundles, stores_of(settings)
    shutil.rmtree(bucket / "mood")
    assert served.fetch() == {}
    assert (folder / "mood" / MANIFEST).exists()
    fetched(cache)
    assert not (folder / "mood").exists()
    assert contents(cache) == hashes(bucket / "names")


@pytest.mark.parametrize("files", [{"../../out": "0" * 64}, {MODEL: "../../out"}])
def test_a_manifest_that_names_paths_writes_nothing_there(
    files: dict[str, str], bucket: Path, cache: Path
) -> None:
    file = bucket / "mood" / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), "files": files}))
    (bucket / "out").write_text("")
    with pytest.raises(BundleError, match="names files or hashes that are paths"):
        fetched(cache, strict=True)
    assert not [file for file in cache.rglob("out*")]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_disk_that_is_full_leaves_no_part(bucket: Path, cache: Path) -> None:
    cache.mkdir()
    with small_disk(cache, "64k"):
        with pytest.raises(BundleError, match=r"cannot be fetched: \[Errno 28\] No space left on device"):
            fetched(cache, f"{URL}/mood")
        assert not list(cache.rglob("*.partial"))
