"""Bundles that change on disk while they are served: the engine process decides what is served, and all agree on it."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import MANIFEST, MODEL, TOKENIZER
from tests.support.crashing import COMMAND
from tests.support.fleet import Fleet, fleet, kill, soon
from tests.support.problems import kind
from tests.support.tiny import SPECS, write_tiny_bundle

TEXT = {"text": "a warm film was dull"}


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("only") / "mood"


@pytest.fixture
def folder(only: Path) -> Path:
    """The folder of the only bundle; the test before may have taken it away."""
    if not only.exists():
        write_tiny_bundle(only, "mood", SPECS["mood"], 0)
    return only


@pytest.fixture(scope="module")
def running(only: Path) -> Iterator[Fleet]:
    write_tiny_bundle(only, "mood", SPECS["mood"], 0)
    with fleet("--bundles", str(only), frontends=1, command=COMMAND) as service:
        yield service


def answers(running: Fleet) -> list[Any]:
    return [running.post(path, TEXT).json["results"] for path in ("/tokenize", "/classify")]


def restart_frontend(running: Fleet) -> None:
    (before,) = running.frontends
    kill(before)
    soon(lambda: len(running.frontends) == 1 and running.frontends != [before])
    running.all_ready()


def test_a_frontend_that_starts_again_has_what_the_engine_has(running: Fleet, folder: Path) -> None:
    before = answers(running)
    file = folder / TOKENIZER
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["warm"], vocabulary["dull"] = vocabulary["dull"], vocabulary["warm"]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    restart_frontend(running)
    assert answers(running) == before
    shutil.rmtree(folder)
    restart_frontend(running)
    assert answers(running) == before


def test_an_engine_that_starts_again_takes_everybody_to_the_bundles_that_are_there(
    running: Fleet, folder: Path
) -> None:
    before, engine = answers(running), running.engine
    shutil.rmtree(folder)
    write_tiny_bundle(folder, "mood", SPECS["mood"], 1)
    restart_frontend(running)
    assert answers(running) == before
    frontends = running.frontends
    kill(engine)
    soon(lambda: running.engine != engine)
    running.all_ready()
    soon(lambda: running.post("/classify", TEXT).status == 200 and answers(running) != before)
    assert running.frontends == frontends  # they need no restart for it


def truncate(folder: Path) -> None:
    (folder / MODEL).write_bytes(b"")


def test_requests_wait_for_the_only_bundle_if_it_is_damaged_or_gone_when_the_engine_dies(
    running: Fleet, folder: Path, tmp_path: Path
) -> None:
    before = answers(running)
    whole = shutil.copytree(folder, tmp_path / "whole")
    for damage in (truncate, shutil.rmtree):
        damage(folder)
        kill(running.engine)
        running.all_waiting()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(running.post, "/classify", TEXT)
            soon(lambda: running.metric("bert_engine_away_requests") == 1)
            shutil.copytree(whole, folder, dirs_exist_ok=True)
            assert waiting.result().json["results"] == before[1]
        running.all_ready()


@pytest.fixture
def several(bundles: Path, tmp_path: Path) -> Path:
    """Two bundles of one task, the first of which is its default, and one of another task."""
    for name in ("mood", "topics", "names"):
        shutil.copytree(bundles / name, tmp_path / "several" / name)
    return tmp_path / "several"


def remove(folder: Path) -> None:
    """Leave the tables alone, which tell nobody that a bundle is to be there."""
    for file in (MANIFEST, MODEL, TOKENIZER):
        (folder / file).unlink()


def test_a_bundle_that_is_half_copied_when_the_engine_dies_is_served_again_once_it_is_whole(
    several: Path, tmp_path: Path
) -> None:
    shutil.copytree(several / "mood", tmp_path / "whole")
    added = several / "added"  # no engine process that starts again looks at it
    with fleet("--bundles", str(several), frontends=1, command=COMMAND) as running:
        before, frontends, names = answers(running), running.frontends, running.post("/ner", TEXT).json
        shutil.copytree(several / "names", added)
        for half in (truncate, remove):
            half(several / "mood")
            kill(running.engine)
            running.all_ready()
            refused = running.post("/classify", TEXT)  # by no other model of the task
            assert (refused.status, kind(refused)) == (503, "model-left-out")
            assert running.post("/ner", TEXT).json == names
            # The gauges follow once the frontend has taken over what the engine serves.
            soon(lambda: running.metric("bert_model_left_out", model="mood", task="classification") == 1)
            assert running.metric("bert_model_info", model="mood") == 0
            engine = running.engine
            shutil.copytree(tmp_path / "whole", several / "mood", dirs_exist_ok=True)
            soon(lambda: running.get("/health/ready?model=mood").status == 200)
            assert answers(running) == before
            assert running.get("/models").json["left_out"] == []
            assert running.metric("bert_model_left_out") == 0
            assert running.metric("bert_model_info", model="mood", default="true") == 1
            assert (running.engine, running.frontends) == (engine, frontends)  # nobody was started for it
