"""/classify by a GLiClass, over a real socket: forms of labels, models beside it, what is refused, the hub's client."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_client import Client
from service.tasks.table import BY_PATH
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.open_classification import PIECES, PROMPT, SPEC, tokenizer_json
from tests.support.problems import fields
from tests.support.tiny import write_tiny_bundle

TEXTS = ["the film was warm", "angela merkel met in paris", "🙂 北京", "", "how long is it"]
ASKED = ["a funny film", "munich", "a", "<<LABEL>>", "日本 x"]
LONG = "angela merkel met a funny film in munich and " * 20
AVERAGE = replace(
    SPEC, class_prompt=replace(PROMPT, label_pooling="average", text_pooling="avg", text_first=True)
)


@pytest.fixture(scope="module")
def opened(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service whose default classifier takes no labels, beside two models that judge all labels in one run."""
    folder = tmp_path_factory.mktemp("open")
    for seed, (name, spec) in enumerate({"open": SPEC, "average": AVERAGE}.items()):
        write_tiny_bundle(folder / name, name, spec, seed, vocab_size=PIECES, tokenizer_json=tokenizer_json())
    models = {"classification": "mood", "open_classification": "open"}
    with serving(bundles=[bundles / "mood", folder], default_models=models) as running:
        yield running


def ask(live: Live, text: object, labels: object, **more: object) -> list[dict[str, Any]]:
    reply = live.post("/classify", {"text": text, "labels": labels, **more})
    assert reply.status == 200, reply.body
    BY_PATH["/classify"].response.model_validate_json(reply.body, strict=True)
    assert reply.json["model"] == more.get("model", "open")
    return list(reply.json["results"])


def scores(result: dict[str, Any]) -> dict[str, float]:
    return {each["label"]: each["score"] for each in result["scores"]}


@pytest.mark.parametrize("model", ["open", "average"])
def test_the_labels_of_a_text_are_one_run_that_no_neighbour_changes(model: str, opened: Live) -> None:
    before = opened.metric("bert_batch_texts_sum")
    found = ask(opened, TEXTS, ASKED, model=model)
    assert opened.metric("bert_batch_texts_sum") == before + len(TEXTS)
    for text, result in zip(TEXTS, found, strict=True):
        assert sum(scores(result).values()) == pytest.approx(1, abs=1e-5) and not result["truncated"]
        (alone,) = ask(opened, text, ASKED, model=model)
        assert scores(alone) == pytest.approx(scores(result), abs=1e-5)
        (several,) = ask(opened, text, ASKED, model=model, multi_label=True)
        assert max(several["scores"], key=lambda each: each["score"])["label"] == result["label"]
    (one,) = ask(opened, TEXTS[0], ASKED[:1], model=model)
    assert one["score"] == pytest.approx(
        ask(opened, TEXTS[0], ASKED[:1], model=model, multi_label=True)[0]["score"]
    )


def test_labels_have_forms(opened: Live) -> None:
    one = ask(opened, TEXTS[0], ASKED)
    assert ask(opened, TEXTS[0], {label: label for label in ASKED}) == one
    assert ask(opened, TEXTS[0], ASKED, template="{}") == one
    named = scores(ask(opened, TEXTS[0], {label: f"a {label}" for label in ASKED})[0])
    assert scores(ask(opened, TEXTS[0], ASKED, template="a {}")[0]) == named != scores(one[0])
    apart = [ask(opened, text, ASKED[:number])[0] for number, text in enumerate(TEXTS, start=1)]
    together = ask(opened, TEXTS, [ASKED[:number] for number in range(1, len(TEXTS) + 1)])
    for ours, alone in zip(together, apart, strict=True):
        assert scores(ours) == pytest.approx(scores(alone), abs=1e-5)
    assert len(ask(opened, "a", ["x", "y"], top_k=1)[0]["scores"]) == 1
    assert ask(opened, "a", ["x", "y"], threshold=1.0)[0]["scores"] == []


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.sampled_from([*ASKED, "a <<SEP>> b", "[SEP]", "l'été", " x ", "place of birth"]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    st.sampled_from(["<<LABEL>> munich <<SEP>> a", "[CLS]", "the film"]),
)
def test_any_label_is_judged_and_a_marker_in_a_text_is_text(
    opened: Live, labels: list[str], text: str
) -> None:
    for model in ("open", "average"):
        (found,) = ask(opened, text, labels, model=model)
        assert sorted(scores(found)) == sorted(labels)


def test_the_text_alone_is_cut(opened: Live) -> None:
    assert ask(opened, LONG, ASKED[:2], truncate=True)[0]["truncated"]
    refused = opened.post("/classify", {"text": ["a", LONG], "labels": ["a"]})
    assert refused.status == 422
    assert "has 185 tokens and the model reads at most 64" in fields(refused)["text[1]"], refused.json


def test_the_named_model_answers_else_the_default_of_its_task(opened: Live) -> None:
    assert ask(opened, "a", ["x", "y"], model="average") != ask(opened, "a", ["x", "y"])
    assert opened.post("/classify", {"text": "a"}).json["model"] == "mood"
    infos = {info["name"]: info for info in opened.get("/models").json["models"]}
    assert infos["open"]["takes_labels"] and not infos["mood"]["takes_labels"]
    assert infos["open"]["task"] == "open_classification" and infos["open"]["examples"][0]["labels"]


def test_lines_and_parameters_of_predictions_take_labels(opened: Live) -> None:
    line = {"text": "a", "labels": ["x", "y"]}
    first, second = post_lines(opened, "/classify", lines_of(line, line))
    assert first["results"] == second["results"] == ask(opened, "a", ["x", "y"])
    body = {"instances": [{"text": "a"}], "parameters": {"labels": ["x", "y"]}}
    reply = opened.post("/v1/models/open:predict", body)
    assert reply.status == 200 and reply.json["predictions"] == ask(opened, "a", ["x", "y"]), reply.json


def test_the_clients_read_the_answer(opened: Live) -> None:
    client = huggingface_hub.InferenceClient(f"{opened.url}/hf/open")
    found = client.zero_shot_classification("the film was warm", ["x", "warm"], multi_label=True)
    (ours,) = ask(opened, "the film was warm", ["x", "warm"], multi_label=True)
    assert [(each.label, each.score) for each in found] == [(s["label"], s["score"]) for s in ours["scores"]]
    assert opened.post("/hf/open/pipeline/zero-shot-classification", {"inputs": "a"}).status == 422
    reply = opened.post("/hf/open", {"inputs": "a"})
    assert reply.status == 422 and "candidate_labels" in reply.json["error"], reply.json
    with Client(opened.url) as own:
        (result,) = own.classify(["the film was warm"], labels=["x", "warm"], multi_label=True)
    assert result.label == ours["label"] and result.score == ours["score"]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "labels", "chooses from the request's labels: send at least one"),
        ({"labels": []}, "labels", "has no label; send at least one"),
        ({"labels": ["a", " "]}, "labels[1]", "is empty"),
        ({"labels": {"x": " "}}, "labels.x", "is empty"),
        ({"labels": ["a", "b", "a"]}, "labels[2]", "is 'a', which is there already"),
        ({"labels": ["a", "\u200b"]}, "labels[1]", "has no pieces"),
        ({"labels": {"a": "b", "x": "\u200b"}}, "labels.x", "has no pieces"),
        ({"labels": ["a"] * 600}, "labels", "600 texts; a request may have 512"),
        ({"labels": ["a"] * 10_000}, "body", "far more values than a request of 512 texts has"),
        ({"labels": [str(n) for n in range(40)]}, "labels", "of the 64 tokens that the model reads"),
        ({"labels": [LONG]}, "labels", "take 182 of the 64 tokens that the model reads, and may take 46"),
        ({"labels": [LONG], "truncate": True}, "labels", "of the 64 tokens that the model reads"),
        ({"text": ["a", "b"], "labels": [["a"], [LONG]]}, "labels[1]", "of the 64 tokens"),
        ({"text": ["a", "b"], "labels": [["a"]]}, "labels", "has 1 lists and text has 2 texts"),
        ({"labels": ["a"], "template": "This is it"}, "template", "needs {} once"),
        ({"labels": ["a"], "text_pair": "b"}, "text_pair", "is not read with labels"),
        ({"labels": ["a"], "windows": "max"}, "windows", "is not read with labels"),
    ],
)
def test_what_cannot_be_judged_is_named(
    opened: Live, body: dict[str, object], field: str, message: str
) -> None:
    before = opened.metric("bert_batch_texts_count")
    reply = opened.post("/classify", {"text": "a", "model": "open", **body})
    assert reply.status == 422, reply.json
    assert message in fields(reply)[field], fields(reply)
    assert opened.metric("bert_batch_texts_count") == before


def test_the_labels_of_requests_are_no_series(opened: Live) -> None:
    ask(opened, "a", ["secret one", "secret two"])
    assert b"secret" not in opened.get("/metrics").body
