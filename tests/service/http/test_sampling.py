"""Opt-in samples: kept as bert-finetune reads them, bounded, in the right share, and never by default."""

import json
import logging
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bert.data.examples import LabelledFile
from bert.data.read import read_labelled
from service import sampling
from service.sampling import Sampler
from tests.support.fleet import fleet, soon
from tests.support.live import Live, eventually, serving
from training.labelled.choice import read_choice

TEXTS = ["the film was long", "angela merkel met in munich"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "samples"


@pytest.fixture
def sampled(bundles: Path, folder: Path) -> Iterator[Live]:
    settings: dict[str, Any] = {"default_models": {"classification": "mood"}}
    with serving(bundles=[bundles], sample_share=1.0, sample_dir=folder, **settings) as live:
        yield live


def rows(folder: Path, model: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many rows of a model, and return them."""
    path = folder / f"{model}.jsonl"
    eventually(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(found) == count
    return found


def test_samples_of_classification_are_training_data(sampled: Live, folder: Path) -> None:
    reply = sampled.post("/classify", {"text": TEXTS})
    found = rows(folder, "mood", 2)
    assert {row["request_id"] for row in found} == {reply.headers["x-request-id"]}
    assert {row["version"] for row in found} == {"1"}
    for row, result in zip(found, reply.json["results"], strict=True):
        (best, second) = result["scores"]
        assert (row["score"], row["margin"]) == pytest.approx(
            (best["score"], best["score"] - second["score"])
        )
    examples = read_labelled(LabelledFile(folder / "mood.jsonl"), "classification")
    answered = [result["label"] for result in reply.json["results"]]
    assert [(each.text, each.label) for each in examples] == list(zip(TEXTS, answered, strict=True))


def test_samples_of_pairs_and_of_several_labels_are_training_data(sampled: Live, folder: Path) -> None:
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    label = sampled.post("/classify", {**pair, "model": "entailment"}).json["results"][0]["label"]
    rows(folder, "entailment", 1)
    (example,) = read_labelled(LabelledFile(folder / "entailment.jsonl"), "classification")
    assert (example.text, example.text_pair, example.label) == (*TEXTS, label)
    (result,) = sampled.post("/classify", {"text": TEXTS[0], "model": "topics"}).json["results"]
    rows(folder, "topics", 1)
    (example,) = read_labelled(LabelledFile(folder / "topics.jsonl"), "classification", "multi_label")
    assert set(example.label) == {each["label"] for each in result["scores"] if each["score"] >= 0.5}


def test_samples_of_entities_are_training_data(sampled: Live, folder: Path) -> None:
    (_, result) = sampled.post("/ner", {"text": TEXTS}).json["results"]
    sampled.post("/ner", {"text": TEXTS, "min_score": 0.99})  # shows some of the entities only
    found = rows(folder, "names", 2)
    spans = [[entity["start"], entity["end"], entity["label"]] for entity in result["entities"]]
    assert spans and found[1]["label"] == spans
    assert found[1]["score"] == pytest.approx(min(entity["score"] for entity in result["entities"]))
    examples = read_labelled(LabelledFile(folder / "names.jsonl"), "ner")
    assert [word for each in examples for word in each.words] == " ".join(TEXTS).split()


def test_samples_of_questions_and_choices_are_training_data(sampled: Live, folder: Path) -> None:
    for threshold in (0.0, 1.0):
        sampled.post("/qa", {"question": "who met", "context": TEXTS[1], "no_answer_threshold": threshold})
    found = rows(folder, "reader", 2)
    without, with_answer = read_labelled(LabelledFile(folder / "reader.jsonl"), "qa")
    assert without.answers == () and with_answer.context == TEXTS[1]
    (answer,) = found[1]["answers"]
    assert with_answer.answers == ((answer["text"], answer["answer_start"]),)
    reply = sampled.post("/multiple-choice", {"prompt": "a film", "choices": TEXTS})
    rows(folder, "stories", 1)
    (example,) = read_choice(folder / "stories.jsonl")
    assert (example.choices, example.label) == (tuple(TEXTS), reply.json["results"][0]["index"])


def test_samples_come_from_lines_and_from_other_apis_too(sampled: Live, folder: Path) -> None:
    line = json.dumps({"text": TEXTS[0]}).encode() + b"\n"
    assert sampled.post("/classify", 2 * line, content_type="application/x-ndjson").status == 200
    assert sampled.post("/tei/predict", {"inputs": TEXTS[0]}).status == 200
    assert [row["text"] for row in rows(folder, "mood", 3)] == [TEXTS[0]] * 3


def test_requests_without_results_and_empty_texts_are_no_samples(sampled: Live, folder: Path) -> None:
    assert sampled.post("/classify", {"text": ["a film", "a film " * 100]}).status == 422
    assert sampled.post("/classify", {"text": ["", " "]}).status == 200
    sampled.post("/classify", {"text": "a film"})
    assert [row["text"] for row in rows(folder, "mood", 1)] == ["a film"]


def test_nothing_is_kept_by_default(bundles: Path, folder: Path) -> None:
    with serving(bundles=[bundles / "mood"], sample_dir=folder) as live:
        live.post("/classify", {"text": TEXTS})
    assert not folder.exists()


def test_the_share_is_kept(folder: Path) -> None:
    random.seed(1)
    sampler = Sampler(0.25, folder)
    assert sum(sampler.chosen() for _ in range(4000)) == pytest.approx(1000, rel=0.1)
    sampler.close()


def test_only_this_user_may_read_samples(sampled: Live, folder: Path) -> None:
    sampled.post("/classify", {"text": "a film"})
    rows(folder, "mood", 1)
    assert (folder.stat().st_mode & 0o777, (folder / "mood.jsonl").stat().st_mode & 0o777) == (0o700, 0o600)


def test_files_rotate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_FILE_BYTES", 1000)
    sampler = Sampler(1.0, folder)
    for number in range(90):
        sampler.take("org/mood", {}, partial(list, [{"text": "a" * 50, "number": number}]))
    sampler.close()
    old, new = folder / "org%2Fmood.old.jsonl", folder / "org%2Fmood.jsonl"
    assert {path.name for path in folder.glob("*.jsonl")} == {old.name, new.name}
    numbers = [json.loads(line)["number"] for path in (old, new) for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 90)), "the latest, in order"
    assert old.stat().st_size < 1200


def write_many(folder: Path, process: int) -> None:
    sampling.MAX_FILE_BYTES = 100_000
    sampler = Sampler(1.0, folder)
    for number in range(50):
        sampler.take("mood", {}, partial(list, [{"text": "a" * 2000, "at": f"{process}.{number}"}]))
    sampler.close()


def test_processes_that_write_at_once_do_not_break_lines(folder: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(write_many, [folder] * 4, range(4)))
    found = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len({row["at"] for row in found}) == len(found) > 40


def test_a_disk_that_cannot_be_written_is_told_once_and_answers_go_on(
    sampled: Live, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("bert_serve")
    monkeypatch.setattr(logger, "propagate", caplog.handler not in logger.handlers)
    (folder / "mood.jsonl").mkdir()
    for _ in range(3):
        assert sampled.post("/classify", {"text": "a film"}).status == 200
    eventually(lambda: caplog.text.count("samples cannot be written") == 1)
    (folder / "mood.jsonl").rmdir()
    sampled.post("/classify", {"text": "a warm film"})
    # One of the others may still have waited.
    file = folder / "mood.jsonl"
    eventually(lambda: file.exists() and b"a warm film" in file.read_bytes())


def test_a_service_of_several_processes_keeps_samples(bundles: Path, folder: Path) -> None:
    options = ("--sample-share", "1", "--sample-dir", str(folder))
    with fleet("--bundles", str(bundles / "mood"), *options, frontends=2) as running:
        for _ in running.each_frontend():
            running.post("/classify", {"text": "a film"})
            soon(lambda: (folder / "mood.jsonl").exists())
        soon(lambda: (folder / "mood.jsonl").read_bytes().count(b"\n") == 2)
    assert os.listdir(folder)
