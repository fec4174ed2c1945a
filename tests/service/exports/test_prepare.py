"""Models by name become bundles: exported by a child, kept, found again, and left out with a reason."""

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import read_bundle
from bert.errors import BundleError, ConfigError
from service.exports import export_process
from service.exports.export_cache import LEFT_OVER_S
from service.exports.named_model import NamedModel
from service.exports.prepare import prepare
from service.settings import ServeSettings
from tests.support.checkpoints import SPECS
from tests.support.families import write_relative
from tests.support.hub_checkpoints import adapter_of, save
from tests.support.hub_process import hub_variables
from tests.support.local_hub import LocalHub, commit_of, local_hub


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    write_relative(folder, "distilbert", SPECS["ner"])
    return folder


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub() as running:
        running.add("org/tiny", checkpoint)
        for name, value in hub_variables(running, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def settings(cache: Path, *models: str, **others: Any) -> ServeSettings:
    return ServeSettings(model=models, model_cache=cache, model_precision="fp32", **others)


def prepared(cache: Path, *models: str, **others: Any) -> list[Path]:
    found = prepare(settings(cache, *models, **others))
    assert not found.failed_models
    return found.bundles


def changed(checkpoint: Path, folder: Path) -> Path:
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "changed_by_the_test": True}))
    return folder


def test_a_model_is_exported_once_and_then_needs_no_network(
    hub: LocalHub, cache: Path, checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder,) = prepared(cache, "org/tiny")
    manifest = read_bundle(folder).manifest
    assert (manifest.name, manifest.precision) == ("tiny", "fp32")
    assert manifest.source["hub"] == {"repo": "org/tiny", "commit": commit_of(checkpoint)}
    assert set(manifest.source["files"]) == {"config.json", "model.safetensors", "vocab.txt"}
    said = capfd.readouterr().err
    assert "downloading org/tiny@" in said and "comparing 60 texts with the checkpoint" in said
    hub.requests.clear()
    assert prepared(cache, "org/tiny") == [folder]
    assert prepared(cache, f"org/tiny@{commit_of(checkpoint)}") == [folder]
    assert prepared(cache, "org/tiny", bundles=[tmp_path]) == [tmp_path, folder]
    assert hub.requests == [] and capfd.readouterr().err == ""


def test_a_model_that_fails_is_left_out_with_the_reason(hub: LocalHub, cache: Path) -> None:
    found = prepare(settings(cache, "org/none", "org/tiny"))
    assert len(found.bundles) == 1
    assert list(found.failed_models) == ["none"]
    assert found.failed_models["none"].startswith(
        "there is no folder org/none here, and no model org/none at http"
    )
    with pytest.raises(BundleError, match="no model org/none"):
        prepare(settings(cache, "org/none", "org/tiny", strict=True))
    with pytest.raises(BundleError, match=r"no model org/none at .*; .*has no revision 'v9'"):
        prepare(settings(cache, "org/none", "org/tiny@v9"))


def test_a_newer_revision_is_looked_for_if_asked(
    hub: LocalHub, cache: Path, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (old,) = prepared(cache, "org/tiny")
    hub.add("org/tiny", changed(checkpoint, tmp_path / "newer"))
    assert prepared(cache, "org/tiny") == [old]
    (new,) = prepared(cache, "org/tiny", update_models=True)
    assert read_bundle(new).manifest.source["hub"]["commit"] == commit_of(tmp_path / "newer")
    assert prepared(cache, "org/tiny") == [new] != [old]
    hub.repos.clear()
    assert prepared(cache, "org/tiny", update_models=True) == [new]


def test_two_starts_at_once_export_once(
    hub: LocalHub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.pause_s = 0.2
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(prepared(cache, "org/tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert capfd.readouterr().err.count("building the fp32 graph") == 1


def test_a_folder_is_exported_again_when_it_changes(
    cache: Path, checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint, folder)
    (first,) = prepared(cache, str(folder))
    assert read_bundle(first).manifest.name == "mine"
    capfd.readouterr()
    assert prepared(cache, str(folder)) == [first]
    assert capfd.readouterr().err == ""
    (folder / "vocab.txt").touch()
    (second,) = prepared(cache, f"theirs={folder}")
    assert second != first and read_bundle(second).manifest.name == "theirs"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_an_adapter_is_exported_again_when_its_base_changes(cache: Path, tmp_path: Path) -> None:
    base = save(tmp_path / "base")
    adapter_of(base, tmp_path / "adapter")
    (first,) = prepared(cache, str(tmp_path / "adapter"))
    assert prepared(cache, str(tmp_path / "adapter")) == [first]
    save(base, layer_norm_eps=1e-6)
    (second,) = prepared(cache, str(tmp_path / "adapter"))
    assert second != first
    assert read_bundle(first).manifest.source != read_bundle(second).manifest.source


def test_what_killed_exports_left_in_the_cache_is_removed_after_a_day(
    cache: Path, checkpoint: Path, tmp_path: Path
) -> None:
    old, young, written = (
        cache / "org--other" / "key" / f".other.partial-{name}" for name in ("1", "2", "3")
    )
    for folder in (old, young, written):
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"half")
    for folder in (old, written):
        os.utime(folder, (0, time.time() - LEFT_OVER_S - 60))
    writer = os.open(written, os.O_RDONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    prepared(cache, str(checkpoint))
    assert [folder.exists() for folder in (old, young, written)] == [False, True, True]
    os.close(writer)


def test_a_damaged_export_is_made_again_whatever_the_environment_has_for_bert_export(
    cache: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_EXPORT_VERSION", "of the environment")
    (folder,) = prepared(cache, str(checkpoint))
    assert read_bundle(folder).manifest.version == "1"
    (folder / "model.onnx").unlink()
    assert prepared(cache, str(checkpoint)) == [folder]
    read_bundle(folder)
    caplog.clear()
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    assert prepared(cache, str(checkpoint), verify_hashes=False) == [folder] and not caplog.records
    assert prepared(cache, str(checkpoint)) == [folder]
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "the export of tiny is damaged and is made again" in warning.getMessage()
    read_bundle(folder)


def test_what_to_install_is_said(cache: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnx" else object())
    with pytest.raises(
        BundleError,
        match=r'which needs onnx: pip install "\.\[export\]" in a clone of the repository; or export it',
    ):
        export_process.export(NamedModel.parse(str(checkpoint)), "", cache, "fp32", 0, as_log=False)


def test_a_cache_that_cannot_be_written_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BundleError, match="cannot be written: Not a directory; name another folder as BERT_SERVE_MODEL_CACHE"
    ):
        prepare(settings(tmp_path / "file", str(checkpoint)))


def test_a_cache_in_a_home_that_the_user_lacks_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a user that is only a number."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with pytest.raises(
        ConfigError, match="bert-serve: this user has no home; name a folder as BERT_SERVE_MODEL_CACHE"
    ):
        prepare(settings(Path("~/.cache/bert-serve"), str(checkpoint)))
