"""/classify with labels of the request, over a real socket: against transformers' pipeline, its forms, what it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import transformers

from bert.tasks.spec import TaskSpec
from service.tasks.table import BY_PATH
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.problems import fields
from tests.support.tiny import MAX_TOKENS, vocabulary, write_tiny_bundle

LABELS = ("entailment", "contradiction", "neutral")
SPEC = TaskSpec("classification", LABELS, pair=True, max_tokens=MAX_TOKENS)
TEXTS = ["the film was warm", "angela merkel met in paris", "🙂 北京", "how long is it"]
ASKED = ["a funny film", "munich", "a", "(angela & co)", "日本"]
LONG = "angela merkel met a funny film in munich and " * 20


@pytest.fixture(scope="module")
def opened(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service whose default classifier takes no labels, beside two models of inference."""
    folder = tmp_path_factory.mktemp("open")
    write_tiny_bundle(folder / "nli", "nli", SPEC, 7)
    write_tiny_bundle(folder / "other-nli", "other-nli", SPEC, 8)
    with serving(
        bundles=[bundles / "mood", bundles / "names", folder], default_models={"classification": "mood"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The pipeline of transformers over the weights of `nli`."""
    import torch

    from bert.config import BertConfig
    from tests.support.tiny import tiny_weights

    folder = tmp_path_factory.mktemp("reference")
    (folder / "vocab.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=MAX_TOKENS)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ours = BertConfig(len(vocabulary()), 32, 2, 4, 64, max_position_embeddings=64)
    weights = {name: torch.from_numpy(value) for name, value in tiny_weights(ours, SPEC, 7).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("position_ids" in name for name in missing)
    return transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)


def ask(live: Live, text: object, labels: object, **more: object) -> list[dict[str, Any]]:
    reply = live.post("/classify", {"text": text, "labels": labels, **more})
    assert reply.status == 200, reply.body
    BY_PATH["/classify"].response.model_validate_json(reply.body, strict=True)
    assert reply.json["model"] == more.get("model", "nli")
    return list(reply.json["results"])


def scores(result: dict[str, Any]) -> dict[str, float]:
    return {each["label"]: each["score"] for each in result["scores"]}


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [ASKED, ASKED[:1], ASKED[:2]])
@pytest.mark.parametrize("template", [None, "It was about {}, not about the film"])
def test_scores_are_those_of_transformers(
    opened: Live, reference: Any, multi_label: bool, labels: list[str], template: str | None
) -> None:
    # The reference's contradiction is the last output where entailment is the first, and here that is neutral.
    reference.model.config.label2id = dict(zip(LABELS, (0, 1, 2), strict=True))
    more = {} if template is None else {"template": template}
    found = ask(opened, TEXTS, labels, multi_label=multi_label, **more)
    if multi_label or len(labels) == 1:
        template = template or "This example is {}."
        for text, result in zip(TEXTS, found, strict=True):
            for label in labels:
                inputs = reference.tokenizer(text, template.format(label), return_tensors="pt")
                entails, contradicts = reference.model(**inputs).logits[0, :2]
                assert scores(result)[label] == pytest.approx(
                    (entails - contradicts).sigmoid().item(), abs=1e-5
                )
        return
    more = {} if template is None else {"hypothesis_template": template}
    for result, theirs in zip(found, reference(TEXTS, labels, **more), strict=True):
        assert scores(result) == pytest.approx(
            dict(zip(theirs["labels"], theirs["scores"], strict=True)), abs=1e-5
        )
        assert result["label"] == theirs["labels"][0]
        assert sum(scores(result).values()) == pytest.approx(1, abs=1e-5)


def test_only_the_text_is_cut(opened: Live, reference: Any) -> None:
    (found,) = ask(opened, LONG, ASKED[:2], truncate=True)
    theirs = reference(LONG, ASKED[:2])
    assert found["truncated"] and scores(found) == pytest.approx(
        dict(zip(theirs["labels"], theirs["scores"], strict=True)), abs=1e-5
    )
    refused = opened.post("/classify", {"text": ["a", LONG], "labels": ["a"]})
    assert refused.status == 422 and "has 197 tokens" in fields(refused)["text[1] with labels[0]"], (
        refused.json
    )


def test_labels_have_forms(opened: Live) -> None:
    one = ask(opened, TEXTS[0], ASKED)
    assert [each["label"] for each in one[0]["scores"]] != ASKED
    mapped = ask(opened, TEXTS[0], {label: f"This example is {label}." for label in ASKED})
    assert mapped == one
    apart = [ask(opened, text, ASKED[:number])[0] for number, text in enumerate(TEXTS, start=1)]
    together = ask(opened, TEXTS, [ASKED[:number] for number in range(1, len(TEXTS) + 1)])
    for ours, alone in zip(together, apart, strict=True):
        assert scores(ours) == pytest.approx(scores(alone), abs=1e-6)
    assert [each["score"] for each in ask(opened, "a", ["x", "y"], top_k=1)[0]["scores"]] != []
    assert ask(opened, "a", ["x", "y"], threshold=1.0)[0]["scores"] == []


def test_the_named_model_answers_else_the_first_that_can(opened: Live) -> None:
    assert ask(opened, "a", ["x", "y"], model="other-nli") != ask(opened, "a", ["x", "y"])
    plain = opened.post("/classify", {"text": "a"})
    assert plain.json["model"] == "mood"


def test_tokens_of_all_hypotheses_are_counted(opened: Live) -> None:
    usage = opened.post("/classify", {"text": ["a", "film"], "labels": ["x", "warm"]}).json["usage"]
    pair = [
        opened.post("/classify", {"text": text, "text_pair": f"This example is {label}.", "model": "nli"})
        for text in ("a", "film")
        for label in ("x", "warm")
    ]
    assert usage["tokens"] == sum(each.json["usage"]["tokens"] for each in pair)


def test_lines_take_labels(opened: Live) -> None:
    line = {"text": "a", "labels": ["x", "y"]}
    first, second = post_lines(opened, "/classify", lines_of(line, line))
    assert first["results"] == second["results"] == ask(opened, "a", ["x", "y"])


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"labels": []}, "labels", "has no label; send at least one"),
        ({"labels": {}}, "labels", "has no label; send at least one"),
        ({"labels": ["a", " "]}, "labels[1]", "is empty"),
        ({"labels": {"x": " "}}, "labels.x", "is empty"),
        ({"labels": {"": "a"}}, "labels.", "is empty"),
        ({"labels": ["a", "b", "a"]}, "labels[2]", "is 'a', which is there already"),
        ({"labels": ["a"] * 600}, "labels", "600 texts; a request may have 512"),
        ({"labels": {str(n): "a" for n in range(600)}}, "labels", "600 texts; a request may have 512"),
        ({"labels": ["a"] * 10_000}, "body", "far more values than a request of 512 texts has"),
        ({"labels": {"x": 7}}, "labels.x", "must be a string"),
        ({"labels": [7]}, "labels[0]", "must be a string"),
        ({"labels": [["a"], "b"]}, "labels[1]", "must be a list of strings"),
        ({"labels": "a"}, "labels", "must be a list of strings, or a list of such lists"),
        ({"text": ["a", "b"], "labels": [["a"]]}, "labels", "has 1 lists and text has 2 texts"),
        ({"text": ["a", "b"], "labels": [["a"], []]}, "labels[1]", "has no label"),
        (
            {"text": ["a"] * 300, "labels": ["a", "b"]},
            "labels of all texts",
            "600 texts; a request may have 512",
        ),
        ({"labels": ["a"], "template": "This is it"}, "template", "needs {} once"),
        ({"labels": ["a"], "template": "{} {}"}, "template", "needs {} once"),
        ({"labels": {"a": "b"}, "template": "{}"}, "template", "labels has one for each"),
        ({"model": "nli"}, "text_pair", "model 'nli' reads pairs, or labels to choose from"),
        ({"labels": ["a"], "text_pair": "b"}, "text_pair", "is not read with labels"),
        ({"labels": ["a"], "windows": "max"}, "windows", "is not read with labels"),
        (
            {"labels": ["a"], "model": "mood"},
            "labels",
            "model 'mood' answers with its own (negative, positive)",
        ),
        ({"labels": ["a", LONG]}, "text with labels[1]", "tokens and the model reads at most 32"),
        (
            {"labels": ["a", LONG], "truncate": True},
            "text with labels[1]",
            "leave no room for the text in 32",
        ),
        ({"template": "{}"}, "template", "is for labels, and none were sent"),
        ({"multi_label": True}, "multi_label", "is for labels, and none were sent"),
        ({"labels": ["a"], "multi_label": 1}, "multi_label", "must be true or false"),
    ],
)
def test_what_cannot_be_judged_is_named(
    opened: Live, body: dict[str, object], field: str, message: str
) -> None:
    before = opened.get("/metrics").body
    reply = opened.post("/classify", {"text": "a", **body})
    assert reply.status == 422, reply.json
    assert message in fields(reply)[field], fields(reply)
    read = [line for line in before.splitlines() if line.startswith(b"bert_batch_texts_count")]
    after = opened.get("/metrics").body
    assert [line for line in after.splitlines() if line.startswith(b"bert_batch_texts_count")] == read


def test_the_labels_of_requests_are_no_series(opened: Live) -> None:
    ask(opened, "a", ["secret one", "secret two"])
    assert b"secret" not in opened.get("/metrics").body


def test_the_hubs_client_reads_the_answer(opened: Live) -> None:
    client = huggingface_hub.InferenceClient(f"{opened.url}/hf/nli")
    found = client.zero_shot_classification(
        "the film was warm", ["x", "warm"], multi_label=True, hypothesis_template="It is {}"
    )
    (ours,) = ask(opened, "the film was warm", ["x", "warm"], multi_label=True, template="It is {}")
    assert [(each.label, each.score) for each in found] == [(s["label"], s["score"]) for s in ours["scores"]]


def test_labels_are_parameters_of_predictions(opened: Live) -> None:
    reply = opened.post(
        "/v1/models/nli:predict", {"instances": [{"text": "a"}], "parameters": {"labels": ["x", "y"]}}
    )
    assert reply.status == 200, reply.json
    assert reply.json["predictions"] == ask(opened, "a", ["x", "y"])
