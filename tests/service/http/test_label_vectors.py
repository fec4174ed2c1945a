"""/ner by a model whose labels have an encoder of their own: vectors are kept, and change nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_export.cli import main
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.open_ner import write_bi_gliner
from tests.support.problems import fields

TEXT = "Angela Merkel met a funny film in Paris and Munich."
LABELS = ["person", "city", "a long film", "🙂 place"]
HOW = {"threshold": 0.05, "flat": False, "multi_label": True}
"""Setting with which the cache holds every label of a test."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, of spans and of words."""
    folder = tmp_path_factory.mktemp("bi")
    for mode in ("markerV0", "token_level"):
        write_bi_gliner(folder / f"checkpoint-{mode}", mode)
        arguments = [
            "--checkpoint",
            str(folder / f"checkpoint-{mode}"),
            "--out",
            str(folder / "bundles" / mode),
        ]
        assert main([*arguments, "--precision", "fp32", "--parity-texts", "few"]) == 0
    return folder / "bundles"


@pytest.fixture(scope="module")
def opened(exported: Path) -> Iterator[Live]:
    """A service with both."""
    with serving(bundles=[exported]) as running:
        yield running


def ask(live: Live, text: object = TEXT, labels: object = LABELS, **more: object) -> Any:
    reply = live.post(
        "/ner", {"text": text, "labels": labels, **(more if "threshold" in more else {**HOW, **more})}
    )
    assert reply.status == 200, reply.body
    return reply.json


def counted(live: Live, model: str = "markerV0") -> tuple[float, float]:
    hits, misses = (
        live.settled_metric("bert_label_vectors_total", model=model, result=result)
        for result in ("hit", "miss")
    )
    return hits, misses


@pytest.mark.parametrize("model", ["markerV0", "token_level"])
def test_known_labels_cost_no_token_and_change_no_bit(model: str, opened: Live) -> None:
    before, labels = counted(opened, model), [f"{label} of old" for label in LABELS]
    first, second = (ask(opened, labels=labels, model=model) for _ in range(2))
    assert first["results"] == second["results"] and first["results"][0]["entities"]
    assert [after - was for after, was in zip(counted(opened, model), before, strict=True)] == [4, 4]
    again = ask(opened, labels=labels[:1], model=model)
    assert first["usage"]["tokens"] > second["usage"]["tokens"] == again["usage"]["tokens"]
    assert opened.metric("bert_label_vectors_bytes") > 4 * (24 * 4 + 500)


def test_labels_that_were_read_with_others_are_the_same_to_the_bit(exported: Path, opened: Live) -> None:
    labels = ["first", "a second label", "🙂 third"]
    for together in (["x", "a second label"], ["🙂 third", "a long film", "y"], ["first"]):
        ask(opened, text="a film", labels=together)
    before, found = counted(opened), ask(opened, labels=labels)
    assert counted(opened) == (before[0] + 3, before[1])
    with serving(bundles=[exported], label_cache_bytes=0) as live:
        expected = ask(live, labels=labels)
        assert found["results"] == expected["results"] and found["results"][0]["entities"]
        assert ask(live, labels=labels) == expected and counted(live) == (0, 6)
        assert live.metric("bert_label_vectors_bytes") == 0


@pytest.mark.parametrize("model", ["markerV0", "token_level"])
def test_a_score_does_not_depend_on_the_labels_beside_it(model: str, opened: Live) -> None:
    (together,) = ask(opened, model=model)["results"]
    scores = {(e["start"], e["end"], e["label"]): e["score"] for e in together["entities"]}
    compared = 0
    for label in LABELS:
        (alone,) = ask(opened, labels=[label], model=model)["results"]
        for entity in alone["entities"]:  # others that overlap in part may have taken the place of some
            key = entity["start"], entity["end"], label
            if key in scores:
                assert entity["score"] == pytest.approx(scores[key], abs=1e-5)
                compared += 1
    assert compared > 10


def test_hundreds_of_labels_and_texts_of_other_labels_side_by_side(opened: Live) -> None:
    many = [f"kind {number}" for number in range(300)]
    lines: list[dict[str, Any]] = [
        {"text": TEXT, "labels": many, "threshold": 0.7},
        {"text": "a film in paris", "labels": ["city"], **HOW},
        {"text": TEXT, "labels": {"LOC": "city"}, **HOW},
        {"text": "", "labels": ["city"]},
    ]
    alone = [ask(opened, **{"threshold": 0.5, **body})["results"][0]["entities"] for body in lines]
    assert all(alone[:3]) and not alone[3]
    for number, answer in enumerate(post_lines(opened, "/ner", lines_of(*lines * 2))):
        (found,), expected = answer["results"], alone[number % 4]
        assert [e["label"] for e in found["entities"]] == [e["label"] for e in expected]
        scores = [e["score"] for e in expected]
        assert [e["score"] for e in found["entities"]] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("model", ["markerV0", "token_level"])
def test_each_text_may_have_labels_of_its_own(model: str, opened: Live) -> None:
    texts = [TEXT, "a film in paris", "", TEXT, "the film was warm in paris " * 20]
    sets = [["own", "city"], [f"kind {n}" for n in range(40)], ["lost"], ["city", "a film", "own"], ["own"]]
    before, found = counted(opened, model), ask(opened, texts, sets, model=model)
    assert sum(counted(opened, model)) == sum(before) + 44
    for text, labels, ours in zip(texts, sets, found["results"], strict=True):
        (theirs,) = ask(opened, text, labels, model=model)["results"]
        places = [(e["start"], e["end"], e["label"]) for e in theirs["entities"]]
        assert [(e["start"], e["end"], e["label"]) for e in ours["entities"]] == places
        scores = [e["score"] for e in theirs["entities"]]
        assert [e["score"] for e in ours["entities"]] == pytest.approx(scores, abs=1e-5)
    assert [bool(each["entities"]) for each in found["results"]] == [True, True, False, True, True]


def test_a_long_text_is_read_to_its_end(opened: Live) -> None:
    text = "the film was warm and angela met merkel in munich " * 60
    (found,) = ask(opened, text, threshold=0.2)["results"]
    assert found["entities"][-1]["end"] > len(text) - 60


def test_what_is_wrong_is_named_and_nothing_is_run(opened: Live) -> None:
    def refused(labels: object) -> dict[str, str]:
        reply = opened.post("/ner", {"text": TEXT, "labels": labels})
        assert reply.status == 422, reply.body
        return fields(reply)

    before = opened.metric("bert_batch_texts_count")
    assert "no label" in refused([])["labels"]
    assert "already" in refused(["a", "b", "a"])["labels[2]"]
    assert "reads at most 32" in refused(["a", "a long film " * 30])["labels[1]"]
    assert "no pieces" in refused(["person", "\u200b"])["labels[1]"]
    assert "513 names" in refused([str(n) for n in range(513)])["labels"]
    assert refused([str(n) for n in range(10_000)])
    assert "has 2 lists" in refused([["a"], ["b"]])["labels"]
    assert "reads at most 32" in refused([["a", "a long film " * 30]])["labels[0][1]"]
    assert "no pieces" in refused([["a", "\u200b"]])["labels[0][1]"]
    assert "no label" in refused([[]])["labels[0]"]
    assert opened.metric("bert_batch_texts_count") == before
