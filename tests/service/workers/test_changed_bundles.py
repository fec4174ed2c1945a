"""Bundles that change on disk while they are served: the engine process decides what is served, and all agree on it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import TOKENIZER
from tests.support.crashing import COMMAND
from tests.support.fleet import Fleet, fleet, kill, soon
from tests.support.tiny import SPECS, write_tiny_bundle

TEXT = {"text": "a warm film was dull"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_bundle(tmp_path / "mood", "mood", SPECS["mood"], 0)
    return tmp_path / "mood"


@pytest.fixture
def running(folder: Path) -> Iterator[Fleet]:
    with fleet("--bundles", str(folder), frontends=1, command=COMMAND) as service:
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
    (frontend,) = running.frontends
    kill(engine)
    soon(lambda: len(running.frontends) == 1 and running.frontends != [frontend])
    running.all_ready()
    served = running.children()
    assert answers(running) != before
    assert running.children() == served  # nobody starts over and over
