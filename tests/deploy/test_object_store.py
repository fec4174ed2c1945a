"""bert-serve with bundles in S3: a real server of its protocol (moto), and a proxy that spoils what it answers.

Skipped where s3fs or moto is not installed: `make clients` has both.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert.bundle import MANIFEST, MODEL
from tests.support.fleet import Fleet, fleet, soon
from tests.support.object_store import BUCKET, credentials, object_store, put
from tests.support.process import COMMAND, ROOT, started
from tests.support.store_proxy import StoreProxy, before
from tests.support.swaps import KEY, TEXT, Asking, manage
from tests.support.tiny import SPECS, write_tiny_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("s3fs", "moto", "flask"))),
        reason="needs s3fs and moto[server]",
    ),
]
URL = f"s3://{BUCKET}/models"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server."""
    with object_store(tmp_path_factory.mktemp("moto") / "moto.log") as url:
        yield url


@pytest.fixture
def store(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """A proxy before a bucket with two bundles, which the service is told of by variables."""
    for name in ("mood", "names"):
        upload(moto, name, 0, "1", tmp_path)
    with before(moto) as proxy:
        for name, value in {**credentials(proxy.url), "AWS_MAX_ATTEMPTS": "2"}.items():
            monkeypatch.setenv(name, value)
        yield proxy


def upload(url: str, name: str, seed: int, version: str, folder: Path) -> None:
    """Upload a bundle as a user should: the manifest last."""
    aside = folder / "aside"
    write_tiny_bundle(aside, name, SPECS[name], seed, version=version)
    for file in sorted(aside.iterdir(), key=lambda each: each.name == MANIFEST):
        put(url, f"models/{name}/{file.name}", file.read_bytes())
    shutil.rmtree(aside)


def version(running: Fleet) -> str:
    return running.post("/classify", {**TEXT, "model": "mood"}).headers["x-model-version"]


def options(cache: Path, *more: str, url: str = URL) -> tuple[str, ...]:
    return ("--bundles", url, "--model-cache", str(cache), "--admin-api-key", KEY, *more)


def test_a_second_start_fetches_the_manifests_only(store: StoreProxy, tmp_path: Path) -> None:
    with fleet(*options(tmp_path), frontends=1) as running:
        assert version(running) == "1"
    assert MODEL in store.files()
    with fleet(*options(tmp_path), frontends=1) as running:
        assert version(running) == "1"
    assert store.files() == [MANIFEST, MANIFEST]


def test_two_services_that_start_at_once_fetch_each_file_once(store: StoreProxy, tmp_path: Path) -> None:
    store.pause_s = 0.1
    arguments = [*options(tmp_path), "--frontends", "0", "--log-level", "error"]
    with started(*arguments) as one, started(*arguments) as two:
        for process in (one, two):
            process.until("Ctrl-C")
    assert len(store.files()) - 2 * 2 == len(list((tmp_path / "store/files").iterdir()))


def test_a_new_version_is_swapped_in_and_no_request_fails(
    store: StoreProxy, moto: str, tmp_path: Path
) -> None:
    with fleet(*options(tmp_path, "--watch-bundles-s", "0.5"), frontends=2) as running:
        store.files()
        asking = Asking(running)
        with asking.all_the_time():
            upload(moto, "mood", 5, "2", tmp_path)
            soon(lambda: version(running) == "2")
            assert [name for name in store.files() if name != MANIFEST] == [MODEL], (
                "what did not change is there"
            )
            upload(moto, "mood", 6, "3", tmp_path)
            running.stop(signal.SIGHUP)
            soon(lambda: version(running) == "3")
        assert asking.statuses.keys() == {200}


def test_a_store_that_is_away_leaves_what_is_served(store: StoreProxy, moto: str, tmp_path: Path) -> None:
    with fleet(*options(tmp_path, "--watch-bundles-s", "0.5"), frontends=1) as running:
        store.refuses = 503
        soon(lambda: running.metric("bert_model_load_failed", model="mood") == 1)
        failed = {each["name"]: each["reason"] for each in running.get("/models").json["failed_loads"]}
        assert failed["mood"].startswith(f"{URL} cannot be fetched: ")
        assert manage(running, "mood", "load").status == 409
        assert version(running) == "1"
        store.refuses = 0
        soon(lambda: running.metric("bert_model_load_failed", model="mood") == 0)
        upload(moto, "mood", 5, "2", tmp_path)
        soon(lambda: version(running) == "2")


def test_answers_that_are_cut_off_and_late_are_waited_for(store: StoreProxy, tmp_path: Path) -> None:
    store.cut_left, store.pause_s = 3, 0.2
    with fleet(*options(tmp_path), frontends=1) as running:
        assert version(running) == "1"
    assert store.cut_left == 0


def test_a_service_that_is_killed_while_it_fetches_starts_again(store: StoreProxy, tmp_path: Path) -> None:
    store.pause_s = 0.5
    with started(*options(tmp_path)) as process:
        soon(lambda: any(MODEL in each for each in store.asked))
        process.popen.kill()
        process.popen.wait()
    store.pause_s = 0
    with fleet(*options(tmp_path), frontends=1) as running:
        assert version(running) == "1"
    assert not list((tmp_path / "store").rglob("*partial*"))


def test_a_service_ends_while_its_store_hangs(store: StoreProxy, tmp_path: Path) -> None:
    with fleet(*options(tmp_path, "--watch-bundles-s", "0.5"), frontends=1) as running:
        store.hangs.set()
        store.asked.clear()
        soon(lambda: bool(store.asked))
        running.stop()
        assert running.process.popen.wait(120) == 0
        assert "is killed" not in running.process.error()


@pytest.mark.parametrize(
    ("url", "status", "reason"),
    [
        ("s3://nowhere/models", 0, "The specified bucket does not exist"),
        (f"{URL}/none", 0, f"{BUCKET}/models/none"),
        (URL, 403, "Forbidden"),
    ],
)
def test_what_is_not_there_or_forbidden_ends_the_start(
    url: str, status: int, reason: str, store: StoreProxy, tmp_path: Path
) -> None:
    store.refuses = status
    done = subprocess.run(
        [*COMMAND, *options(tmp_path, url=url)], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert (done.returncode, f"{url} cannot be fetched: {reason}" in done.stderr) == (1, True), done.stderr
