"""Several versions of a model at once: one is the default, each can be asked for, and a canary gets a share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import read_bundle, write_bundle
from bert.errors import EngineError
from bert.tasks.spec import TaskSpec
from tests.support.fleet import Fleet, fleet, kill, soon
from tests.support.live import Client, eventually, serving
from tests.support.problems import kind
from tests.support.slow import gated
from tests.support.swaps import KEY, manage
from tests.support.tiny import MAX_TOKENS, write_tiny_bundle

TEXT = {"text": "a warm film was dull"}
LABELS = {"2": ("bad", "good"), "10": ("bad", "fine", "good"), "9": ("no", "yes")}


def put(folder: Path, version: str) -> None:
    """Write a version of the model `mood`, whose labels tell it."""
    spec = TaskSpec("classification", LABELS[version], max_tokens=MAX_TOKENS)
    write_tiny_bundle(folder / f"aside-{version}", "mood", spec, int(version))
    bundle = read_bundle(folder / f"aside-{version}")
    files = {name: (bundle.folder / name).read_bytes() for name in bundle.manifest.files}
    write_bundle(folder / "served" / f"mood-{version}", replace(bundle.manifest, version=version), files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for version in ("2", "10"):
        put(tmp_path, version)
    return tmp_path


def asked(client: Client, model: str | None = None) -> tuple[str, str]:
    """Return the version that answers, and the name that the answer gives the model."""
    reply = client.post("/classify", {**TEXT, "model": model} if model else TEXT)
    version = reply.headers["x-model-version"]
    assert {each["label"] for each in reply.json["results"][0]["scores"]} == set(LABELS[version])
    return version, reply.json["model"]


def check_versions(client: Client) -> None:
    assert asked(client) == asked(client, "mood") == asked(client, "mood@10") == ("10", "mood")
    assert asked(client, "mood@2") == ("2", "mood@2")
    unknown = client.post("/classify", {**TEXT, "model": "mood@3"})
    assert (unknown.status, kind(unknown)) == (404, "unknown-model") and "mood@2" in unknown.json["detail"]
    assert [each["name"] for each in client.get("/models").json["models"]] == ["mood", "mood@2"]
    tensor = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a film"]}]}
    for path, version in (("", "10"), ("/versions/10", "10"), ("/versions/2", "2")):
        assert client.post(f"/v2/models/mood{path}/infer", tensor).json["model_version"] == version
        assert client.get(f"/v2/models/mood{path}/ready").status == 200
    assert client.get("/v2/models/mood/versions/3/ready").status == 404
    assert client.post("/v2/models/mood/versions/3/infer", tensor).status == 404
    assert client.get("/v2/models/mood").json["versions"] == ["10", "2"]
    assert client.get("/v2/models").json["models"] == ["mood"]
    assert client.get("/health/ready?model=mood@2").status == 200


def test_the_highest_version_is_the_default_and_each_can_be_asked_for(folder: Path) -> None:
    with serving(bundles=[folder / "served"]) as live:
        check_versions(live)
        assert live.metric("bert_model_info", model="mood@2", version="2") == 1


def test_frontends_have_the_same_versions_and_one_that_is_added(folder: Path) -> None:
    with fleet("--bundles", str(folder / "served"), "--admin-api-key", KEY, frontends=2) as running:
        for _ in running.each_frontend():
            check_versions(running)
        put(folder, "9")
        assert manage(running, "mood", "unload").status == 200
        check_gone(running)
        assert manage(running, "mood", "load").status == 200
        assert asked(running) == ("10", "mood")
        assert manage(running, "mood", "rollback").status == 409  # which?
        assert manage(running, "mood@10", "unload").status == 200
        assert asked(running) == ("9", "mood"), "the one that was added"


def test_a_version_that_was_unloaded_comes_back_beside_one_that_is_loaded(folder: Path) -> None:
    with fleet("--bundles", str(folder / "served"), "--admin-api-key", KEY, frontends=1) as running:
        assert manage(running, "mood", "unload").status == 200
        put(folder, "9")
        for loaded, version in (("mood@2", "2"), ("mood@9", "9")):
            assert manage(running, loaded, "load").status == 200
            assert asked(running) == (version, "mood")
            assert manage(running, "mood@10", "unload").status == 404, "it is not loaded"
        assert manage(running, "mood", "load").status == 200
        assert asked(running) == ("10", "mood")
        assert manage(running, "mood@10", "unload").status == 200
        unknown = manage(running, "mood@3", "load")
        assert (unknown.status, kind(unknown)) == (404, "unknown-model")
        assert "loaded are mood, mood@2" in unknown.json["detail"]
        kill(running.engine)
        soon(lambda: running.metric("bert_engine_restarts_total") == 1)
        running.all_ready()
        assert manage(running, "mood@10", "load").status == 200
        assert asked(running) == ("10", "mood")


def check_gone(running: Fleet) -> None:
    assert running.post("/classify", TEXT).status == 404


def test_the_default_version_and_a_canary_are_settings(folder: Path) -> None:
    settings: dict[str, Any] = {"default_versions": {"mood": "2"}, "canary": {"mood": "10:0.3"}}
    with serving(bundles=[folder / "served"], **settings) as live:
        found = [asked(live) for _ in range(100)]
        assert set(found) == {("2", "mood"), ("10", "mood@10")}
        assert 10 <= found.count(("10", "mood@10")) <= 55
        assert {asked(live, "mood@2") for _ in range(20)} == {("2", "mood")}
        share = live.settled_metric("bert_request_duration_seconds_count", model="mood@10", status="200")
        assert share == found.count(("10", "mood@10"))
        for version in ("2", "10"):
            labels = {"model": "mood", "version": version}
            assert live.metric("bert_inference_duration_seconds_count", **labels) > 0
            assert live.metric("bert_batch_padding_ratio_count", **labels) > 0


def test_a_shadow_reads_what_was_answered_and_never_changes_an_answer(folder: Path) -> None:
    settings: dict[str, Any] = {"default_versions": {"mood": "2"}, "shadow": {"mood": "10:1"}}
    with serving(bundles=[folder / "served"], **settings) as live:

        def counted(result: str) -> float:
            labels = {"model": "mood", "version": "10", "result": result}
            return live.metric("bert_shadow_requests_total", **labels)

        for _ in range(5):
            assert asked(live) == ("2", "mood")
            eventually(lambda: live.service._shadowing is not None and live.service._shadowing.done())
        assert counted("differ") == 5  # its labels are others
        requests = live.settled_metric("bert_request_duration_seconds_count", endpoint="/classify")
        assert requests == 5
        assert live.metric("bert_results_total", version="10") == 0
        assert asked(live, "mood@10") == ("10", "mood@10")  # itself is not compared
        live.scheduler.queue.tokens += 1
        try:
            with gated(live, "mood@10") as engine:
                assert asked(live) == ("2", "mood")
                eventually(lambda: counted("dropped") == 1)
                assert engine.batches == 0
        finally:
            live.scheduler.queue.tokens -= 1
        with gated(live, "mood@10") as engine:
            engine.error = EngineError("broken")
            assert asked(live) == ("2", "mood")  # while the shadow is held
            assert asked(live) == ("2", "mood")
            assert counted("dropped") == 2
            engine.gate.set()
            eventually(lambda: counted("failed") == 1)


def test_wrong_settings_name_the_rule() -> None:
    from service.settings import ServeSettings

    with pytest.raises(ValueError, match="write name=version:share"):
        ServeSettings(canary={"mood": "3"})
