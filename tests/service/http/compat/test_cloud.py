"""SageMaker's, Vertex AI's and KServe V1's conventions, as they call a container."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert.errors import QueueFullError
from tests.support.live import Live, serving


@pytest.fixture
def vertex(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/up")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v1/endpoints/7:ask")
    with serving(bundles=[bundles / "mood"], api_key="one-long-key") as running:
        yield running


def test_sagemaker_pings_without_a_key(keyed: Live) -> None:
    assert (keyed.get("/ping").status, keyed.get("/ping").body) == (200, b"")
    assert keyed.post("/invocations", {"inputs": "a", "model": "mood"}).status == 401


def test_invocations_are_those_of_huggingface(wired: Live) -> None:
    asked = {"inputs": ["a film", "a"], "parameters": {"top_k": 1}}
    expected = wired.post("/hf/mood", asked).json
    assert wired.post("/invocations", asked | {"model": "mood"}).json == expected
    assert wired.post("/invocations", asked | {"task": "classification"}).json == expected
    refused = wired.post("/invocations", asked)
    assert refused.status == 422 and refused.json["error"].startswith(
        "model: or task is required: loaded are"
    )


def test_kserve_v1_predicts(wired: Live) -> None:
    assert "mood" in wired.get("/v1/models").json["models"]
    assert wired.get("/v1/models/mood").json["ready"] is True
    own = wired.post("/classify", {"text": ["a", "b"]}).json["results"]
    asked = {"instances": ["a", {"text": "b"}]}
    assert wired.post("/v1/models/mood:predict", asked).json == {"predictions": own}
    top = wired.post("/v1/models/mood:predict", asked | {"parameters": {"top_k": 1}}).json["predictions"]
    assert [len(each["scores"]) for each in top] == [1, 1]


def test_every_task_predicts_what_its_endpoint_answers(wired: Live) -> None:
    asked = {
        "entailment": ("/classify", {"text": "a", "text_pair": "b"}),
        "names": ("/ner", {"text": "angela in munich"}),
        "reader": ("/qa", {"question": "where", "context": "the film was in munich"}),
        "meaning": ("/embed", {"text": "a film"}),
        "gaps": ("/fill-mask", {"text": "[MASK] film"}),
    }
    for model, (path, instance) in asked.items():
        own = wired.post(path, instance | {"model": model}).json["results"]
        found = wired.post(f"/v1/models/{model}:predict", {"instances": [instance]})
        assert found.json == {"predictions": own}, model


def test_parameters_are_the_options_of_the_endpoint(wired: Live) -> None:
    for model, path, instance, parameters in (
        ("mood", "/classify", {"text": "a film"}, {"threshold": 0.5, "temperature": 20}),
        ("mood", "/classify", {"text": "a film " * 90}, {"windows": "mean", "top_k": 1.0}),
        ("names", "/ner", {"text": "angela in munich"}, {"labels": ["LOC"], "min_score": 0.1}),
        ("names", "/ner", {"text": "angela in munich"}, {"aggregation": "none"}),
        (
            "reader",
            "/qa",
            {"question": "where", "context": "it was in munich"},
            {"no_answer_threshold": 0, "top_k": 3, "max_answer_tokens": 1},
        ),
        ("meaning", "/embed", {"text": "a film"}, {"dimensions": 2, "encoding_format": "base64"}),
        ("gaps", "/fill-mask", {"text": "[MASK] film"}, {"top_k": 2}),
    ):
        own = wired.post(path, instance | {"model": model} | parameters)
        asked = {"instances": [instance], "parameters": parameters | {"unknown": 1, "truncate": None}}
        found = wired.post(f"/v1/models/{model}:predict", asked)
        assert found.json == {"predictions": own.json["results"]}, (found.json, own.json)
        plain = wired.post(f"/v1/models/{model}:predict", {"instances": [instance]})
        assert plain.json != found.json


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        (
            "names",
            {"labels": ["NONSENSE"]},
            "parameters.labels[0]: model 'names' has no entities of type 'NONSENSE'",
        ),
        ("names", {"labels": ["PER", 1]}, "parameters.labels[1]: must be a string"),
        ("names", {"min_score": 7}, "parameters.min_score: must be a number from 0 to 1, not 7"),
        ("names", {"aggregation": "rubbish"}, "parameters.aggregation: must be 'first'"),
        ("names", {"truncate": True}, "parameters.truncate: is not an option of ner, which 'names' is for"),
        ("mood", {"dimensions": 2}, "parameters.dimensions: is not an option of classification"),
        ("mood", {"top_k": "1"}, "parameters.top_k: must be a whole number of at least 1, not a string"),
        ("mood", {"text_pair": "b"}, "parameters.text_pair: is a text: send it in instances"),
        (
            "meaning",
            {"encoding_format": "binary"},
            "parameters.encoding_format: is 'binary', which is not JSON",
        ),
        ("meaning", {"dimensions": 99}, "parameters.dimensions: is 99, and model 'meaning' gives 32"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(
    wired: Live, model: str, parameters: dict[str, object], message: str
) -> None:
    asked = {"instances": ["a", "b"], "parameters": parameters}
    reply = wired.post(f"/v1/models/{model}:predict", asked)
    assert reply.status == 422 and message in reply.json["error"], reply.json


def test_a_model_and_a_task_that_contradict_each_other_are_refused(wired: Live) -> None:
    for path, body in (
        ("/invocations", {"inputs": "a", "model": "mood", "task": "ner"}),
        ("/v1/models/mood:predict", {"instances": ["a"], "parameters": {"task": "ner"}}),
        ("/v1/models/mood:predict", {"instances": ["a"], "parameters": {"model": "names"}}),
    ):
        reply = wired.post(path, body)
        assert reply.status == 422 and reply.json["error"].startswith("model: "), reply.json
    agreed = {"instances": ["a"], "parameters": {"model": "mood", "task": "classification"}}
    assert wired.post("/v1/models/mood:predict", agreed).status == 200


def test_errors_name_the_instance(wired: Live) -> None:
    for model, instances, message in (
        ("mood", ["a", "b " * 999], "instances[1].text: the text has 1001 tokens"),
        ("reader", [{"question": " ", "context": "b"}], "instances[0].question: is empty"),
        (
            "meaning",
            ["a", {"text": "a", "dimensions": 2}],
            "instances[1].dimensions: is an option, which holds for all instances: send it in parameters",
        ),
    ):
        reply = wired.post(f"/v1/models/{model}:predict", {"instances": instances})
        assert reply.status == 422 and message in reply.json["error"], reply.json


@pytest.mark.parametrize(
    ("model", "instances"),
    [
        ("mood", []),
        ("mood", [1]),
        ("mood", ["a", None]),
        ("mood", [{"text": "a", "text_pair": "b"}]),
        ("mood", [{"words": "a"}]),
        ("mood", "a"),
        ("entailment", ["a"]),
        ("entailment", [{"text": "a", "text_pair": "b"}, {"text": "a"}]),
        ("reader", [{"question": "who"}]),
    ],
)
def test_wrong_instances_are_refused(wired: Live, model: str, instances: object) -> None:
    reply = wired.post(f"/v1/models/{model}:predict", {"instances": instances})
    assert reply.status == 422 and set(reply.json) == {"error"}, reply.body


def test_errors_hold_their_text(wired: Live, failing: Callable[..., None]) -> None:
    assert "there is no model" in wired.post("/v1/models/nope:predict", {"instances": ["a"]}).json["error"]
    failing(QueueFullError(100, 100, 2))
    reply = wired.post("/invocations", {"inputs": "a", "model": "mood"})
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")


def test_vertex_names_its_routes(vertex: Live) -> None:
    assert vertex.get("/up").status == 200
    asked = {"instances": ["a", {"text": "b"}]}
    assert vertex.post("/v1/endpoints/7:ask", asked).status == 401
    reply = vertex.post("/v1/endpoints/7:ask", asked, x_api_key="one-long-key")
    assert len(reply.json["predictions"]) == 2


def test_predictions_need_the_key_where_vertex_names_one_route_for_both(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"):
        monkeypatch.setenv(name, "/v1/endpoints/7")
    with serving(bundles=[bundles / "mood"], api_key="one-long-key") as live:
        assert live.get("/v1/endpoints/7").status == 200
        assert live.post("/v1/endpoints/7", {"instances": ["a"]}).status == 401
