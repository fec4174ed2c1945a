"""/ner with labels of the request, over a real socket: what is found, forms, models beside it, what is refused."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.tasks.open_ner import decode
from bert.tasks.open_ner.decode import FLOOR
from service.tasks.table import BY_PATH
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.open_ner import PIECES, SPEC, tokenizer_json, write_wide_bundle
from tests.support.problems import fields
from tests.support.tiny import write_tiny_bundle

TEXT = "Angela Merkel met a funny film in Paris and Munich."
LABELS = ["person", "city", "a long film"]


@pytest.fixture(scope="module")
def opened(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a model of four types and two that take labels, one of spans and one of words."""
    folder = tmp_path_factory.mktemp("open")
    for mode, seed in {"markerV0": 5, "token_level": 3}.items():
        write_tiny_bundle(
            folder / mode, mode, SPEC[mode], seed, tokenizer_json=tokenizer_json(), vocab_size=PIECES
        )
    with serving(bundles=[bundles / "names", folder], default_models={"open_ner": "markerV0"}) as running:
        yield running


def ask(live: Live, text: object, labels: object, **more: object) -> list[list[dict[str, Any]]]:
    reply = live.post("/ner", {"text": text, "labels": labels, **more})
    assert reply.status == 200, reply.body
    BY_PATH["/ner"].response.model_validate_json(reply.body, strict=True)
    return [result["entities"] for result in reply.json["results"]]


def refused(live: Live, **body: object) -> dict[str, str]:
    reply = live.post("/ner", body)
    assert reply.status == 422, reply.body
    return fields(reply)


@pytest.mark.parametrize("model", ["markerV0", "token_level"])
def test_entities_are_parts_of_the_text_over_the_threshold(model: str, opened: Live) -> None:
    (found,) = ask(opened, TEXT, LABELS, model=model, threshold=0.3)
    assert found
    for entity in found:
        assert TEXT[entity["start"] : entity["end"]] == entity["text"]
        assert entity["label"] in LABELS and entity["score"] > 0.3
    assert [entity["start"] for entity in found] == sorted(entity["start"] for entity in found)
    for one, other in itertools.pairwise(found):
        assert one["end"] <= other["start"]
    fewer = ask(opened, TEXT, LABELS, model=model, threshold=0.8)[0]
    assert all(entity["score"] > 0.8 for entity in fewer) and len(fewer) <= len(found)


def test_texts_beside_it_and_its_own_repetition_change_nothing(opened: Live) -> None:
    texts = [TEXT, "x", "", " \n ", "🙂 北京 e-mail_x", "the film " * 200]
    together = ask(opened, texts, LABELS, threshold=0.2)
    assert together[2] == together[3] == []
    for text, found in zip(texts, together, strict=True):
        (alone,) = ask(opened, text, LABELS, threshold=0.2)
        assert [(e["start"], e["end"], e["label"]) for e in alone] == [
            (e["start"], e["end"], e["label"]) for e in found
        ]
        assert [e["score"] for e in alone] == pytest.approx([e["score"] for e in found], abs=1e-5)


def test_a_long_text_is_read_to_its_end(opened: Live) -> None:
    text = "the film was warm and angela met merkel in munich " * 60
    (found,) = ask(opened, text, LABELS, threshold=0.2)
    assert found[-1]["end"] > len(text) - 60


def test_names_are_answered_for_what_is_read(opened: Live) -> None:
    listed = ask(opened, TEXT, ["person", "city"], threshold=0.2)[0]
    named = ask(opened, TEXT, {"PER": "person", "LOC": "city"}, threshold=0.2)[0]
    names = {"person": "PER", "city": "LOC"}
    assert [{**entity, "label": names[entity["label"]]} for entity in listed] == named and named


def test_each_text_may_have_labels_of_its_own(opened: Live) -> None:
    texts, sets = [TEXT, "", "the film was warm"], [["person", "city"], ["a"], LABELS]
    found = ask(opened, texts, sets, threshold=0.2)
    alone = [ask(opened, text, labels, threshold=0.2)[0] for text, labels in zip(texts, sets, strict=True)]
    for ours, theirs in zip(found, alone, strict=True):
        assert [(e["start"], e["label"]) for e in ours] == [(e["start"], e["label"]) for e in theirs]
    assert found[0] and found[2]
    assert ask(opened, TEXT, sets[:1], threshold=0.2) == found[:1], "one text and one list"


def test_markers_in_texts_and_labels_are_characters(opened: Live) -> None:
    text = "<<ENT>> angela <<SEP>> munich [SEP] <<ENT>>"
    (found,) = ask(opened, text, ["<<ENT>>", "a <<SEP>> b"], threshold=0.05)
    assert {entity["label"] for entity in found} <= {"<<ENT>>", "a <<SEP>> b"} and found


def test_a_model_with_types_answers_for_its_own_labels(opened: Live) -> None:
    def model(**body: object) -> str:
        return str(opened.post("/ner", {"text": TEXT, **body}).json["model"])

    assert model() == model(labels=["PER"]) == "names"
    assert (
        model(labels=["person"])
        == model(labels={"PER": "x"})
        == model(labels=["PER"], flat=True)
        == "markerV0"
    )
    infos = {info["name"]: info for info in opened.get("/models").json["models"]}
    assert infos["markerV0"]["takes_labels"] and not infos["names"]["takes_labels"]
    assert infos["markerV0"]["task"] == "open_ner" and infos["markerV0"]["examples"][0]["labels"]


def test_labels_count_to_usage(opened: Live) -> None:
    def tokens(labels: list[str]) -> int:
        return int(opened.post("/ner", {"text": TEXT, "labels": labels}).json["usage"]["tokens"])

    assert tokens(["person", "the film"]) > tokens(["person"]) > len(TEXT.split())


def test_lines(opened: Live) -> None:
    lines = [
        {"text": TEXT, "labels": LABELS},
        {"text": TEXT, "labels": []},
        {"text": "x", "labels": ["a"]},
        {"text": [TEXT, "x"], "labels": [LABELS, ["a"]]},
        {"text": TEXT, "labels": [LABELS, ["a"]]},
    ]
    answers = post_lines(opened, "/ner", lines_of(*lines))
    assert [("results" in answer) for answer in answers] == [True, False, True, True, False]
    assert answers[3]["results"] == answers[0]["results"] + answers[2]["results"]


def test_what_is_wrong_is_named(opened: Live) -> None:
    assert "at least one" in refused(opened, text=TEXT, model="markerV0")["labels"]
    assert refused(opened, text=TEXT, labels={"a": ""})["labels.a"] == "is empty"
    assert "1000 names" in refused(opened, text=TEXT, labels={str(n): "a" for n in range(1000)})["labels"]
    assert "of the 64 tokens" in refused(opened, text=TEXT, labels=[f"p{n}" for n in range(40)])["labels"]
    assert "no pieces" in refused(opened, text=TEXT, labels=["person", "\u200b"])["labels[1]"]
    assert str(FLOOR) in refused(opened, text=TEXT, labels=["a"], threshold=FLOOR / 2)["threshold"]
    assert "takes_labels" in refused(opened, text=TEXT, model="names", flat=False)["flat"]
    found = refused(opened, text=TEXT, model="markerV0", labels=["a"], min_score=0.5, left_out=["symbols"])
    assert set(found) == {"min_score", "left_out"}


COMPOSED, APART = "caf\u00e9", "cafe\u0301"
LONG = "a long film " * 30
BAD_LABELS: dict[str, tuple[object, str, str]] = {
    "none": ([], "labels", "has no label; send at least one"),
    "blank": (["a", " \n"], "labels[1]", "is empty"),
    "equal": (["a", "b", "a"], "labels[2]", "is 'a', which is there already"),
    "equal when composed": ([COMPOSED, "a", APART], "labels[2]", f"is {APART!r}, which is there already"),
    "keys equal when composed": ({COMPOSED: "a", APART: "b"}, f"labels.{APART}", "which is there already"),
    "NUL": (["a", "per\0son"], "labels[1]", "holds NUL"),
    "only NUL": (["\0"], "labels[0]", "holds NUL"),
    "NUL in what is read": ({"a": "b\0"}, "labels.a", "holds NUL"),
    "half a pair": (["a", "b\ud83d"], "labels[1]", "half of a surrogate pair"),
    "half a pair in what is read": ({"a": "\ud83d"}, "labels.a", "half of a surrogate pair"),
    "too long": ([LONG], "labels", "of the 64 tokens that the model reads, and may take"),
    "very many": ([str(n) for n in range(10_000)], "body", "max_texts_per_request"),
    "many": ([str(n) for n in range(1_000)], "labels", "has 1000 names and may have 512"),
    "another number of lists": ([["a"], ["b"], ["c"]], "labels", "has 3 lists and text has 2 texts"),
    "no list": ([["a"], "b"], "labels[1]", "must be a list of strings"),
    "number": ([["a"], ["b", 1]], "labels[1][1]", "must be a string"),
    "none of a text": ([["a"], []], "labels[1]", "has no label"),
    "blank of a text": ([["a"], ["b", ""]], "labels[1][1]", "is empty"),
    "equal of a text": ([["a"], [APART, COMPOSED]], "labels[1][1]", "already"),
    "NUL of a text": ([["a"], ["\0b"]], "labels[1][0]", "holds NUL"),
    "half a pair of a text": ([["a"], ["\ud83d"]], "labels[1][0]", "half of a surrogate pair"),
    "too long of a text": ([["a"], [LONG]], "labels[1]", "of the 64 tokens"),
    "no pieces of a text": ([["a"], ["b", "\u200b"]], "labels[1][1]", "has no pieces"),
    "too many of all texts": ([["a"] * 300] * 2, "labels", "600 texts; a request may have 512"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_named_with_their_rule_and_nothing_is_run(case: str, opened: Live) -> None:
    labels, field, rule = BAD_LABELS[case]
    before = opened.metric("bert_batch_texts_count"), opened.metric("bert_tokens_total")
    found = refused(opened, text=[TEXT, "x"], labels=labels, model="markerV0")
    assert field in found and rule in found[field], found
    assert (opened.metric("bert_batch_texts_count"), opened.metric("bert_tokens_total")) == before


def test_labels_that_differ_are_no_equals(opened: Live) -> None:
    """Of another case, of letters with another accent, and long ones, which are compared as they are."""
    assert ask(
        opened, "x", ["person", "Person", "caf\u00e8", COMPOSED, "a" + "\u0301" * 300, "a" + "\u0301" * 301]
    )


def test_a_model_with_types_refuses_labels_of_any_kind(opened: Live) -> None:
    for labels, field, rule in (
        (["person"], "labels[0]", "has no entities of type 'person'; known are"),
        ([["PER"], ["PER"]], "labels", "is for models that take the labels of a request"),
        ({"PER": "a"}, "labels", "is for models that take the labels of a request"),
        ([], "labels", "is empty; name one of"),
    ):
        assert rule in refused(opened, text=[TEXT, "x"], model="names", labels=labels)[field]


def test_a_list_of_a_text_has_no_more_names_than_one_of_all(bundles: Path, tmp_path: Path) -> None:
    write_wide_bundle(tmp_path / "wide", "wide")
    with serving(bundles=[tmp_path], max_texts_per_request=2_000) as live:
        many = [["a"], [str(n) for n in range(513)]]
        assert "513 names and may have 512" in refused(live, text=["x", "y"], labels=many)["labels[1]"]


def test_texts_and_labels_of_mostly_unknown_pieces_are_named(opened: Live) -> None:
    labels = ["person", "🦜 ꙮ"]
    reply = opened.post("/ner", {"text": ["a film", "🦜"], "labels": labels, "model": "markerV0"})
    assert [each["field"] for each in reply.json["warnings"]] == ["labels[1]", "text[1]"]


def test_a_text_may_repeat_its_words_very_often(opened: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word costs the queue of texts that wait for the tokenizer as much as 64 characters, but only once."""
    monkeypatch.setattr(opened.loaded.pipeline.threads.tokenize.queue, "max_tokens", 10_000)
    assert ask(opened, "film . " * 200, ["a"])
    reply = opened.post("/ner", {"text": " ".join(map(str, range(200))), "labels": ["a"]})
    assert reply.status == 413 and "characters or more" in reply.json["detail"]


def test_too_many_candidates_are_refused(opened: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_FOUND", 3)
    found = refused(opened, text=["a", TEXT], labels=LABELS, threshold=0.3)
    assert "over 3 candidates above the threshold of 0.3" in found["text[1]"]
