"""Models that come, change, leave and come back while requests run: none fails, and each has one version's answer."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import MANIFEST, MODEL
from service.workers.served_bundles import RETRY_EVERY_S
from tests.support.fleet import fleet, kill, soon
from tests.support.problems import kind
from tests.support.process import COMMAND
from tests.support.swaps import KEY, OTHER, TEXT, Asking, answer, manage, other_tokenizer, put
from tests.support.tiny import SPECS, write_tiny_bundle

WITH_KEY = ("--admin-api-key", KEY)


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    """Two bundles of one task, and one of another."""
    for name in ("mood", "topics", "names"):
        shutil.copytree(bundles / name, tmp_path / "served" / name)
    return tmp_path / "served"


@pytest.mark.parametrize("frontends", [0, 2])
def test_a_new_version_is_swapped_in_and_no_request_fails(frontends: int, folder: Path) -> None:
    tokenizer, pieces = other_tokenizer()
    versions: list[dict[str, Any]] = [
        {"spec": SPECS["mood"], "seed": 1},
        {"spec": OTHER, "seed": 2},
        {"spec": OTHER, "seed": 2, "tokenizer_json": tokenizer, "vocab_size": pieces},
    ]
    with fleet("--bundles", str(folder), *WITH_KEY, frontends=frontends) as running:
        processes, asking, seen = running.children(), Asking(running), [answer(running)]
        with asking.all_the_time():
            for number, version in enumerate(versions):
                put(folder / "mood", "mood", **version)
                if number % 2:
                    running.stop(signal.SIGHUP)
                    for _ in running.each_frontend() if frontends else [0]:
                        soon(lambda: answer(running) not in seen)
                else:
                    assert manage(running, "mood", "load").json == {"model": "mood", "status": "loaded"}
                for _ in running.each_frontend() if frontends else [0]:
                    assert answer(running) not in seen  # of all frontends: what is answered was taken over
                seen.append(answer(running))
        assert asking.statuses.keys() == {200}
        assert sorted(asking.answers) == sorted(seen), "an answer is one version's"
        assert running.children() == processes
        assert running.metric("bert_model_info", model="mood") == 1


def memory_of(pid: int) -> int:
    """Return a process's memory in KiB: all of it, as its share depends on what else runs on the machine."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def test_twenty_swaps_lose_no_request_and_no_memory(folder: Path) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, frontends=1) as running:
        asking, memory = Asking(running), list[int]()
        with asking.all_the_time():
            for seed in range(10, 30):
                put(folder / "mood", "mood", SPECS["mood"], seed)
                assert manage(running, "mood", "load").status == 200
                memory.append(memory_of(running.engine))
        assert asking.statuses.keys() == {200}
        assert len(asking.answers) >= 20
        assert max(memory[-5:]) < 1.05 * max(memory[5:10]), memory


def test_a_bundle_that_cannot_be_served_leaves_the_one_before(folder: Path) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, "--ready-when", "all", frontends=1) as running:
        before = answer(running)
        write_tiny_bundle(folder.parent / "aside", "mood", OTHER, 5)
        graph = (folder.parent / "aside" / MODEL).read_bytes()
        (folder.parent / "aside" / MODEL).write_bytes(graph[:-100])
        shutil.copytree(folder.parent / "aside", folder / "mood", dirs_exist_ok=True)
        refused = manage(running, "mood", "load")
        assert (refused.status, kind(refused)) == (409, "load-failed")
        assert "the file was changed" in refused.json["detail"]
        assert answer(running) == before
        (failed,) = running.get("/models").json["failed_loads"]
        assert failed["name"] == "mood" and "the file was changed" in failed["reason"]
        assert running.metric("bert_model_load_failed", model="mood") == 1
        assert running.get("/health/ready").status == 200  # what is served answers
        (folder / "mood" / MODEL).write_bytes(graph)  # the copy is complete: nobody has to ask again
        soon(lambda: answer(running) != before)
        soon(lambda: running.metric("bert_model_load_failed", model="mood") == 0)
        assert running.get("/models").json["failed_loads"] == []


def test_a_folder_that_is_gone_is_reported_once(folder: Path) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, frontends=0) as running:
        shutil.rmtree(folder / "mood")
        assert manage(running, "mood", "load").status == 409
        time.sleep(4 * RETRY_EVERY_S)
        assert running.post("/classify", TEXT).status == 200
        running.stop()
        assert running.process.error().count("model mood goes on as it is") == 1


def test_a_model_that_was_added_is_found_and_one_that_is_half_copied_once_it_is_whole(
    bundles: Path, folder: Path
) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, frontends=1) as running:
        assert manage(running, "reader", "load").status == 404
        shutil.copytree(bundles / "meaning", folder / "meaning")
        (folder / "reader").mkdir()
        shutil.copy(bundles / "reader" / MANIFEST, folder / "reader")
        running.stop(signal.SIGHUP)
        soon(lambda: running.post("/embed", TEXT).status == 200)
        soon(lambda: len(running.get("/models").json["failed_loads"]) == 1)
        shutil.copytree(bundles / "reader", folder / "reader", dirs_exist_ok=True)
        question = {"question": "who", "context": "angela merkel"}
        soon(lambda: running.post("/qa", question).status == 200)
        assert running.get("/models").json["failed_loads"] == []


def test_a_model_is_unloaded_and_comes_back(folder: Path) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, "--ready-when", "all", frontends=1) as running:
        before = answer(running)
        assert manage(running, "mood", "unload").status == 200
        gone = running.post("/classify", TEXT)  # no other model of the task answers in its place
        assert (gone.status, kind(gone)) == (404, "unknown-model")
        assert [each["name"] for each in running.get("/models").json["unloaded"]] == ["mood"]
        assert running.metric("bert_model_info", model="mood") == 0
        assert running.metric("bert_model_ready", model="mood") == 0
        assert running.get("/health/ready").status == 200
        running.stop(signal.SIGHUP)  # what was unloaded on purpose stays so
        assert manage(running, "topics", "load").status == 200
        assert running.post("/classify", TEXT).status == 404
        assert manage(running, "mood", "load").status == 200
        assert answer(running) == before
        for name in ("mood", "topics", "names"):
            assert manage(running, name, "unload").status == 200
        soon(lambda: running.get("/health/ready").status == 503)
        assert manage(running, "mood", "load").status == 200
        assert answer(running) == before


def test_what_was_unloaded_stays_so_after_an_engine_restart_and_is_no_error(folder: Path) -> None:
    with fleet("--bundles", str(folder), *WITH_KEY, "--log-level", "warning", frontends=1) as running:
        assert manage(running, "mood", "unload").status == 200
        kill(running.engine)
        soon(lambda: running.post("/classify", {**TEXT, "model": "topics"}).status == 200)
        assert [each["name"] for each in running.get("/models").json["unloaded"]] == ["mood"]
        assert running.get("/models").json["left_out"] == []
        running.stop()
        assert "model mood" not in running.process.error()


def test_the_key_for_models_is_one_of_its_own(folder: Path) -> None:
    with fleet("--bundles", str(folder), "--api-key", "battery-staple", frontends=0) as running:
        for key in (KEY, "battery-staple"):
            refused = running.post("/models/mood/unload", {}, x_api_key=key)
            assert (refused.status, kind(refused)) == (403, "forbidden")
            assert "admin_api_key is set" in refused.json["detail"]
    keys = ("--api-key", "battery-staple", *WITH_KEY)
    with fleet("--bundles", str(folder), *keys, frontends=0) as running:
        refused = running.post("/models/mood/unload", {}, x_api_key="battery-staple")
        assert (refused.status, kind(refused)) == (403, "forbidden")
        assert running.post("/models/mood/unload", {}, authorization=f"Bearer {KEY}").status == 200
        assert running.post("/classify", TEXT, x_api_key=KEY).status == 401


def test_a_hang_up_does_not_stop_the_service(folder: Path) -> None:
    for frontends in (0, 1):
        with fleet("--bundles", str(folder), frontends=frontends, command=COMMAND) as running:
            before = running.children()
            for pid in (running.supervisor, *before):
                os.kill(pid, signal.SIGHUP)
            assert answer(running)
            assert running.children() == before and running.process.popen.poll() is None


def test_requests_that_the_engine_had_when_it_died_get_their_own_version_or_none(folder: Path) -> None:
    """The engine comes back with another tokenizer: what was read by the one before is refused, not misread."""
    with fleet("--bundles", str(folder), frontends=1) as running:
        frontends, before = running.frontends, answer(running)
        put(folder / "mood", "mood", OTHER, 7)
        kill(running.engine)
        soon(
            lambda: (
                list(OTHER.labels)
                in [each["labels"] for each in running.get("/models").json.get("models", [])]
            )
        )
        assert answer(running) != before
        assert running.frontends == frontends
