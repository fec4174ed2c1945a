"""A bundle that cannot be served, or a model that fails, does not affect the others."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bert.bundle import MANIFEST, MODEL, TOKENIZER
from bert.errors import BundleError, EngineError
from bert.manifest import SHA256, own_sha256
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from tests.support.fleet import fleet
from tests.support.live import Client, Live, eventually, serving
from tests.support.problems import TEXT, kind
from tests.support.process import started
from tests.support.slow import gated

CHANGED = "the file was changed; export the checkpoint again"


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    """Two sound bundles, and one for each file that was damaged."""
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    for name, file in (("entailment", MANIFEST), ("meaning", TOKENIZER), ("reader", MODEL)):
        shutil.copytree(bundles / name, tmp_path / name)
        damaged = tmp_path / name / file
        damaged.write_bytes(damaged.read_bytes()[:-100])
    return tmp_path


def check_left_out(client: Client) -> None:
    """The sound bundles answer, and each damaged one says what is wrong with it."""
    assert client.post("/classify", {**TEXT, "model": "mood"}).status == 200
    assert client.post("/ner", TEXT).status == 200
    shown = client.get("/models").json
    assert [(each["name"], each["ready"], each["why_not_ready"]) for each in shown["models"]] == [
        ("mood", True, None),
        ("names", True, None),
    ]
    reasons = {(each["name"], each["task"]): each["reason"] for each in shown["left_out"]}
    assert reasons.keys() == {("entailment", "classification"), ("meaning", "similarity"), ("reader", "qa")}
    assert "is not JSON" in reasons["entailment", "classification"]
    assert CHANGED in reasons["meaning", "similarity"] and CHANGED in reasons["reader", "qa"]
    for path, body in (
        ("/embed", TEXT),
        ("/embed", {**TEXT, "model": "meaning"}),
        ("/classify", {**TEXT, "model": "entailment"}),
        ("/qa", {"question": "who", "context": "angela merkel"}),
    ):
        refused = client.post(path, body)
        assert (refused.status, kind(refused)) == (503, "model-left-out"), (path, body)
        assert "could not be loaded; the log and /models say why" in refused.json["detail"]
    assert client.get("/health/ready").status == 200
    assert client.get("/health/ready?model=names").status == 200
    left_out, unknown = (client.get(f"/health/ready?model={name}") for name in ("reader", "nope"))
    assert left_out.status == 503 and "the log and /models say why" in left_out.json["detail"]
    assert unknown.status == 404 and "mood" not in unknown.body.decode()


def test_a_damaged_bundle_is_left_out_and_the_others_answer(folder: Path) -> None:
    with serving(bundles=[folder]) as live:
        check_left_out(live)
        assert live.metric("bert_model_left_out", model="reader", task="qa") == 1
        assert live.metric("bert_model_ready", model="mood") == 1


def test_frontends_leave_out_what_the_engine_process_left_out(folder: Path) -> None:
    with fleet("--bundles", str(folder)) as running:
        for _ in running.each_frontend():
            check_left_out(running)
        assert running.metric("bert_model_left_out", model="reader") == 1
        assert running.metric("bert_model_ready") == 2


def test_a_bundle_that_was_left_out_is_served_when_its_files_are_whole(bundles: Path, folder: Path) -> None:
    with serving(bundles=[folder], ready_when="all", wait=False) as live:
        eventually(lambda: live.get("/health/ready?model=mood").status == 200)
        reply = live.get("/health/ready")
        assert reply.status == 503 and "without entailment, meaning, reader" in reply.json["detail"]
        for name in ("entailment", "meaning", "reader"):
            shutil.copytree(bundles / name, folder / name, dirs_exist_ok=True)
        eventually(lambda: live.get("/health/ready").status == 200)
        shown = live.get("/models").json
        assert {each["name"] for each in shown["models"]} == {path.name for path in folder.iterdir()}
        assert shown["left_out"] == []
        question = {"question": "who", "context": "angela merkel"}
        assert [live.post("/qa", question).status, live.post("/embed", TEXT).status] == [200, 200]
        for name, task in (("entailment", "classification"), ("reader", "qa")):
            assert live.metric("bert_model_left_out", model=name, task=task) == 0
            assert live.metric("bert_model_info", model=name, task=task) == 1
            assert live.metric("bert_model_ready", model=name) == 1


def test_a_bundle_that_is_still_damaged_after_a_change_says_what_is_wrong_now(
    bundles: Path, tmp_path: Path
) -> None:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "names" / MODEL).unlink()
    with serving(bundles=[tmp_path]) as live:
        (tmp_path / "names" / MODEL).write_bytes(b"no graph")
        eventually(lambda: CHANGED in live.get("/models").json["left_out"][0]["reason"])
        shutil.copytree(bundles / "mood", tmp_path / "names", dirs_exist_ok=True)
        eventually(lambda: "two bundles have the name" in live.get("/models").json["left_out"][0]["reason"])
        assert live.post("/classify", TEXT).status == 200


def test_a_default_that_is_left_out_is_not_replaced_by_another_model(bundles: Path, tmp_path: Path) -> None:
    for name in ("mood", "topics"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "mood" / MODEL).unlink()
    with serving(bundles=[tmp_path]) as live:
        assert live.post("/classify", {**TEXT, "model": "topics"}).status == 200
        assert live.post("/classify", TEXT).status == 503


def test_a_manifest_that_is_cut_off_keeps_its_default(bundles: Path, tmp_path: Path) -> None:
    for name in ("mood", "topics"):
        shutil.copytree(bundles / name, tmp_path / name)
    manifest = tmp_path / "mood" / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:400])
    with serving(bundles=[tmp_path]) as live:
        assert live.post("/classify", {**TEXT, "model": "topics"}).status == 200
        assert live.post("/classify", TEXT).status == 503


def test_a_folder_without_a_manifest_is_reported(bundles: Path, tmp_path: Path) -> None:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "names" / MANIFEST).unlink()
    with serving(bundles=[tmp_path]) as live:
        (left_out,) = live.get("/models").json["left_out"]
        assert left_out["name"] == "names" and "bundle.json is missing" in left_out["reason"]
        assert live.get("/health/ready?model=names").status == 503
    with pytest.raises(BundleError, match=r"bundle.json is missing"):
        find_bundles([tmp_path], strict=True)


def test_a_pipe_in_place_of_a_manifest_is_reported(bundles: Path, tmp_path: Path) -> None:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "names" / MANIFEST).unlink()
    os.mkfifo(tmp_path / "names" / MANIFEST)
    with serving(bundles=[tmp_path]) as live:
        (left_out,) = live.get("/models").json["left_out"]
    assert (
        left_out["name"] == "names"
        and "bundle.json cannot be read: it is not a regular" in left_out["reason"]
    )


def check_first_left_out(client: Client) -> None:
    """/tokenize without a model is for the first bundle."""
    assert client.post("/tokenize", {**TEXT, "model": "names"}).status == 200
    refused = client.post("/tokenize", TEXT)
    assert (refused.status, kind(refused)) == (503, "model-left-out")
    assert "'mood'" in refused.json["detail"]


def test_a_first_bundle_that_is_left_out_is_not_replaced_where_no_task_is_named(
    bundles: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundles / "mood", tmp_path / "mood")
    (tmp_path / "mood" / MODEL).unlink()
    paths = [tmp_path / "mood", bundles / "names"]
    with serving(bundles=paths) as live:
        check_first_left_out(live)
    with fleet("--bundles", ",".join(map(str, paths)), frontends=1) as running:
        check_first_left_out(running)


def test_a_second_bundle_of_one_name_is_left_out(bundles: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(bundles / "mood", tmp_path / name)
    with serving(bundles=[tmp_path / "one", tmp_path / "two"]) as live:
        assert live.post("/classify", TEXT).status == 200
        (left_out,) = live.get("/models").json["left_out"]
        assert (
            f"two bundles have the name 'mood' and version '1': {tmp_path / 'one'} and" in left_out["reason"]
        )


def test_a_bundle_named_by_the_word_of_a_route_is_left_out(bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(bundles / "mood", tmp_path / "mood")
    shutil.copytree(bundles / "names", tmp_path / "ping")
    content = json.loads((tmp_path / "ping" / MANIFEST).read_text()) | {"name": "ping"}
    (tmp_path / "ping" / MANIFEST).write_text(json.dumps(content | {SHA256: own_sha256(content)}))
    with serving(bundles=[tmp_path]) as live:
        (left_out,) = live.get("/models").json["left_out"]
        assert left_out["name"] == "ping" and "because /tei/ping is a route" in left_out["reason"]
        assert live.post("/tei/ping", {"inputs": "a film"}).status == 503
        assert live.post("/tei/mood", {"inputs": "a film"}).status == 200


def test_strict_fails_the_start_and_names_the_bundle(folder: Path) -> None:
    for name in ("entailment", "meaning"):
        shutil.rmtree(folder / name)
    with started("--bundles", str(folder), "--strict", "--frontends", "0") as process:
        assert process.popen.wait(120) == 1
        assert f"reader/{MODEL} has sha256" in process.error()


def test_where_no_bundle_is_left_the_start_fails_with_all_reasons(folder: Path) -> None:
    for name in ("mood", "names"):
        shutil.rmtree(folder / name)
    with pytest.raises(BundleError, match=r"none of 3 bundles is left: .*is not JSON.*changed.*changed"):
        BundleLoader(find_bundles([folder]), threads=1).load(1)


@pytest.mark.parametrize("ready_when", ["any", "all"])
def test_a_model_that_fails_is_not_ready_and_the_others_are(bundles: Path, ready_when: str) -> None:
    def say_no(live: Live, model: str) -> bool:
        return live.get(f"/health/ready?model={model}").status == 503

    with serving(bundles=[bundles / "mood", bundles / "names"], ready_when=ready_when) as live:
        live.service._last_probe = -1e9
        with gated(live, "mood") as engine:
            engine.gate.set()
            engine.error = EngineError("broken")
            for _ in range(3):
                assert live.post("/classify", TEXT).status == 500
            eventually(lambda: say_no(live, "mood"))
            assert not say_no(live, "names")
            assert live.get("/health/ready").status == (200 if ready_when == "any" else 503)
            assert live.metric("bert_model_ready", model="mood") == 0
            (mood, names) = live.get("/models").json["models"]
            assert (mood["ready"], mood["why_not_ready"]) == (False, "failing on mood")
            assert names["ready"]


def test_a_model_that_fails_at_start_does_not_keep_the_others(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.engine.models import Model
    from service.http.lifecycle import Service

    warm_up = Service.warm_up

    async def failing(self: Service, model: Model, timeout_s: float = 1.0) -> None:
        if model.name == "mood":
            raise EngineError("broken")
        await warm_up(self, model, timeout_s)

    monkeypatch.setattr(Service, "warm_up", failing)
    with serving(bundles=[bundles / "mood", bundles / "names"]) as live:
        assert live.get("/health/ready?model=mood").status == 503
        assert live.post("/ner", TEXT).status == 200
