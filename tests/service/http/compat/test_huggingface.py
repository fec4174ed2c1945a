"""Hugging Face's InferenceClient, at /hf/MODEL."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from bert.errors import DeadlineExceededError, QueueFullError
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live

hub = pytest.importorskip(
    "huggingface_hub", reason="the client `huggingface_hub` is not installed: `make clients` installs it"
)
LETTERS = "Angela Merkels filmmakers met 🙂 in Münchens dullest film"
NAMES = "Angela Merkel met 🙂 in Munich"
PASSAGE = "the film was in munich and it was warm"


@pytest.fixture(autouse=True)
def _no_token_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")


def client(live: Live, model: str, path: str = "hf", key: str = KEY, **options: Any) -> Any:
    return hub.InferenceClient(f"{live.url}/{path}/{model}", token=key, **options)


def test_text_classification(wired: Live) -> None:
    own = wired.post("/classify", {"text": "a film"}).json["results"][0]["scores"]
    found = client(wired, "mood").text_classification("a film")
    assert [(each.label, each.score) for each in found] == [(each["label"], each["score"]) for each in own]
    (best,) = client(wired, "mood").text_classification("a film", top_k=1, function_to_apply="softmax")
    assert best.label == own[0]["label"]
    both = wired.post("/hf/mood", {"inputs": ["a film", "a"], "parameters": {}}).json
    assert [len(each) for each in both] == [2, 2]


@pytest.mark.parametrize("model", ["mood", "topics", "stars"])
def test_any_function_may_be_applied(wired: Live, model: str) -> None:
    def scores(function: str | None) -> np.ndarray:
        found = client(wired, model).text_classification("a film", function_to_apply=function, top_k=9)
        return np.array([each.score for each in sorted(found, key=lambda each: str(each.label))])

    logits = scores("none")
    np.testing.assert_allclose(scores("sigmoid"), special.expit(logits), atol=1e-6)
    np.testing.assert_allclose(scores("softmax"), special.softmax(logits), atol=1e-6)
    own = {"mood": "softmax", "topics": "sigmoid", "stars": "none"}[model]
    assert np.array_equal(scores(None), scores(own))


def test_pairs_are_objects(wired: Live) -> None:
    pair = {"text": "a film", "text_pair": "munich"}
    own = wired.post("/classify", pair | {"model": "entailment"}).json["results"][0]["scores"]
    assert wired.post("/hf/entailment", {"inputs": pair}).json == [own]
    assert wired.post("/hf/entailment", {"inputs": [pair, pair]}).json == [own, own]
    for wrong in ("a film", {"text": "a"}, [pair, {"text": "a"}], [pair, "a"]):
        assert wired.post("/hf/entailment", {"inputs": wrong}).status == 422
    assert wired.post("/hf/mood", {"inputs": pair}).status == 422


def test_token_classification(wired: Live) -> None:
    own = wired.post("/ner", {"text": NAMES}).json["results"][0]["entities"]
    found = client(wired, "names").token_classification(NAMES)
    assert own and len(found) == len(own)
    for each, entity in zip(found, own, strict=True):
        assert NAMES[each.start : each.end] == each.word == entity["text"]
        assert each.entity_group == entity["label"]
    without = client(wired, "names").token_classification(NAMES, ignore_labels=[own[0]["label"]])
    assert {each.entity_group for each in without} == {each["label"] for each in own} - {own[0]["label"]}
    with pytest.raises(
        hub.errors.HfHubHTTPError, match="must be first, average, max, simple or none, not 'mean'"
    ):
        client(wired, "names").token_classification(NAMES, aggregation_strategy="mean")
    assert len(wired.post("/hf/names", {"inputs": [NAMES, "a"]}).json) == 2


@pytest.mark.parametrize("strategy", ["first", "average", "max", "simple"])
def test_token_classification_by_each_strategy(wired: Live, strategy: str) -> None:
    own = wired.post("/ner", {"text": LETTERS, "aggregation": strategy}).json["results"][0]["entities"]
    found = client(wired, "names").token_classification(LETTERS, aggregation_strategy=strategy)
    assert [(e.entity_group, e.score, e.word, e.start, e.end) for e in found] == [
        (e["label"], e["score"], e["text"], e["start"], e["end"]) for e in own
    ]
    capital = {"inputs": LETTERS, "parameters": {"aggregation_strategy": strategy.upper()}}
    assert len(wired.post("/hf/names", capital).json) == len(own) > 0


def test_token_classification_without_aggregation_gives_pieces(wired: Live) -> None:
    own = wired.post("/ner", {"text": LETTERS, "aggregation": "none"}).json["results"][0]["entities"]
    pieces = wired.post("/tokenize", {"text": LETTERS, "model": "names"}).json["results"][0]["tokens"]
    found = client(wired, "names").token_classification(LETTERS, aggregation_strategy="none")
    assert [(e.entity, e.score, e.start, e.end) for e in found] == [
        (e["label"], e["score"], e["start"], e["end"]) for e in own
    ]
    assert all(each.entity_group is None for each in found)
    rows = wired.post("/hf/names", {"inputs": LETTERS, "parameters": {"aggregation_strategy": "none"}}).json
    assert [list(row) for row in rows] == [["entity", "score", "index", "word", "start", "end"]] * len(found)
    for row in rows:
        piece = pieces[row["index"]]
        unknown = piece["text"] == "[UNK]"
        assert row["word"] == (LETTERS[row["start"] : row["end"]] if unknown else piece["text"])
        assert (row["start"], row["end"]) == (piece["start"], piece["end"])
    first = found[0].entity
    without = client(wired, "names").token_classification(
        LETTERS, aggregation_strategy="none", ignore_labels=[first]
    )
    assert [each.entity for each in without] == [each.entity for each in found if each.entity != first]


def test_question_answering(wired: Live) -> None:
    asked = {"question": "where was it", "context": PASSAGE}
    found = client(wired, "reader").question_answering(**asked)
    assert PASSAGE[found.start : found.end] == found.answer != ""
    several = client(wired, "reader").question_answering(**asked, top_k=3)
    assert len(several) == 3 and several[0].answer == found.answer
    own = wired.post("/qa", asked).json["results"][0]
    found = client(wired, "reader").question_answering(**asked, handle_impossible_answer=True)
    assert found.answer == (own["answer"] or "") and found.score == pytest.approx(own["score"])
    both = wired.post("/hf/reader", {"inputs": [asked, asked]}).json
    assert len(both) == 2 and both[0]["answer"] == several[0].answer
    with pytest.raises(hub.errors.HfHubHTTPError, match="question"):
        client(wired, "reader").question_answering(question=" ", context=PASSAGE)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (
            "reader",
            "abc",
            "inputs: must be an object with question and context, or a list of such objects, not a string",
        ),
        ("reader", [{"question": "a", "context": "b"}, 7], "inputs[1]: must be an object"),
        ("reader", {"question": "a"}, "inputs.context: is required"),
        ("reader", [{"question": "a", "context": None}], "inputs[0].context: must be a string, not null"),
        ("mood", [{"text": "a"}, "b"], "inputs[1]: must be an object with text and text_pair"),
    ],
)
def test_wrong_inputs_are_named(wired: Live, model: str, inputs: object, message: str) -> None:
    reply = wired.post(f"/hf/{model}", {"inputs": inputs})
    assert reply.status == 422 and message in reply.json["error"], reply.json


def test_zero_shot_classification_is_refused_and_not_answered_with_the_models_own_labels(wired: Live) -> None:
    with pytest.raises(
        hub.errors.HfHubHTTPError, match="candidate_labels: model 'mood' answers with its own"
    ) as caught:
        client(wired, "mood").zero_shot_classification("a film", ["politics", "sport"])
    assert caught.value.response.status_code == 422


PAIR = {"question": "where was it", "context": PASSAGE}
COMPARED = {"source_sentence": "a", "sentences": ["munich"]}


@pytest.mark.parametrize(
    ("model", "inputs", "parameters", "message"),
    [
        ("mood", "a", {"candidate_labels": ["x"]}, "candidate_labels: model 'mood' answers with its own"),
        ("names", "a", {"candidate_labels": ["x"]}, "candidate_labels: is not an option of ner"),
        ("mood", "a", {"candidate_labels": 5}, "candidate_labels: must be a string or a list of strings"),
        (
            "mood",
            "a",
            {"candidate_labels": [["x"]]},
            "candidate_labels: must be a string or a list of strings",
        ),
        ("mood", "a", {"multi_label": True}, "multi_label: is for candidate_labels, and none were sent"),
        (
            "mood",
            "a",
            {"aggregation_strategy": "first"},
            "aggregation_strategy: is not an option of classification",
        ),
        (
            "mood",
            "a",
            {"dimensions": 2},
            "dimensions: is not an option of classification, which 'mood' is for",
        ),
        ("mood", "a", {"prompt_name": "query"}, "prompt_name: is not an option of classification"),
        ("names", "a", {"top_k": 1}, "top_k: is not an option of ner"),
        ("names", "a", {"truncation": True}, "truncation: is not an option of ner"),
        ("names", "a", {"stride": 4}, "stride: is 4, and the windows of model 'names' have 8"),
        ("reader", PAIR, {"doc_stride": 4}, "doc_stride: is 4, and the windows of model 'reader' have 8"),
        (
            "reader",
            PAIR,
            {"max_seq_len": 16},
            "max_seq_len: is 16, and the windows of model 'reader' have 32",
        ),
        ("reader", PAIR, {"max_question_len": 5}, "max_question_len: is 5, and the windows of model"),
        ("reader", PAIR, {"align_to_words": False}, "align_to_words: cannot be honoured: answers begin"),
        ("reader", PAIR, {"function_to_apply": "none"}, "function_to_apply: is not an option of qa"),
        ("meaning", "a", {"function_to_apply": "none"}, "function_to_apply: is not an option of similarity"),
        ("meaning", COMPARED, {"encoding_format": "base64"}, "encoding_format: must be float"),
        ("gaps", "[MASK]", {"truncate": True}, "truncate: is not an option of fill_mask"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused(
    wired: Live, model: str, inputs: object, parameters: dict[str, object], message: str
) -> None:
    for asked in ({"inputs": inputs, "parameters": parameters}, {"inputs": inputs, **parameters}):
        reply = wired.post(f"/hf/{model}", asked)
        assert reply.status == 422 and reply.json["error"].startswith(message), reply.json


@pytest.mark.parametrize(
    ("model", "inputs", "parameters"),
    [
        ("mood", "a", {"multi_label": False, "candidate_labels": None, "truncate": False, "options": {}}),
        ("names", "a", {"stride": 8, "truncation": False}),
        (
            "reader",
            PAIR,
            {"doc_stride": 8, "max_seq_len": 32, "max_question_len": 20, "align_to_words": True},
        ),
        ("meaning", COMPARED, {"encoding_format": "float", "normalize": True}),
    ],
)
def test_parameters_that_say_what_is_done_anyway_are_taken(
    wired: Live, model: str, inputs: object, parameters: dict[str, object]
) -> None:
    plain = wired.post(f"/hf/{model}", {"inputs": inputs})
    assert wired.post(f"/hf/{model}", {"inputs": inputs, "parameters": parameters}).json == plain.json


def test_dimensions_hold_for_sentences_too(wired: Live) -> None:
    own = wired.post("/similarity", {"text": "a", "candidates": "munich", "dimensions": 4}).json["results"]
    found = wired.post("/hf/meaning", {"inputs": COMPARED, "parameters": {"dimensions": 4}}).json
    assert found == pytest.approx([own[0]["score"]], abs=1e-6)


@pytest.mark.parametrize(
    ("model", "inputs", "pipeline"),
    [
        ("mood", "a", "text-classification"),
        ("names", "a", "token-classification"),
        ("reader", PAIR, "question-answering"),
        ("meaning", "a", "feature-extraction"),
        ("meaning", COMPARED, "sentence-similarity"),
        ("gaps", "[MASK]", "fill-mask"),
    ],
)
def test_the_pipeline_in_the_path_is_the_models(
    wired: Live, model: str, inputs: object, pipeline: str
) -> None:
    own = wired.post(f"/hf/{model}", {"inputs": inputs})
    assert wired.post(f"/hf/{model}/pipeline/{pipeline}", {"inputs": inputs}).json == own.json
    reply = wired.post(f"/hf/{model}/pipeline/zero-shot-classification", {"inputs": inputs})
    assert reply.status == 422 and "pipeline: " in reply.json["error"], reply.json


@pytest.mark.parametrize("value", ["1", True, 1.5, 0])
def test_only_whole_numbers_are_numbers(wired: Live, value: object) -> None:
    for name in ("top_k", "max_answer_len", "dimensions"):
        reply = wired.post("/hf/mood", {"inputs": "a", "parameters": {name: value}})
        assert reply.status == 422 and f"{name}: must be a whole number" in reply.json["error"]
    assert wired.post("/hf/mood", {"inputs": "a", "parameters": {"top_k": 1.0}}).status == 200


def test_feature_extraction(wired: Live) -> None:
    own = wired.post("/embed", {"text": ["a", "film"]}).json["results"]
    found = client(wired, "meaning").feature_extraction(["a", "film"], normalize=False)
    assert found.shape == (2, 32) and found.dtype == np.float32
    np.testing.assert_allclose(found, [each["embedding"] for each in own], atol=1e-7)
    assert client(wired, "meaning").feature_extraction("a", dimensions=8).shape == (1, 8)
    assert client(wired, "meaning", path="tei").feature_extraction("a").shape == (1, 32)
    long = "the film was warm " * 100
    with pytest.raises(hub.errors.HfHubHTTPError, match="402 tokens"):
        client(wired, "meaning").feature_extraction(long)
    assert client(wired, "meaning").feature_extraction(long, truncate=True).shape == (1, 32)


def test_sentence_similarity(wired: Live) -> None:
    sentences = ["a film", "munich", "dull"]
    own = wired.post("/similarity", {"text": "a", "candidates": sentences}).json["results"]
    expected = [each["score"] for each in sorted(own, key=lambda each: each["index"])]
    for path in ("hf", "tei"):
        found = client(wired, "meaning", path=path).sentence_similarity("a", sentences)
        assert found == pytest.approx(expected, abs=1e-6)


def test_fill_mask(wired: Live) -> None:
    own = wired.post("/fill-mask", {"text": "paris is [MASK]", "top_k": 2}).json["results"][0]["masks"][0]
    found = client(wired, "gaps").fill_mask("paris is [MASK]", top_k=2)
    assert [each.token for each in found] == [each["id"] for each in own["candidates"]]
    assert [each.token_str for each in found] == [each["token"] for each in own["candidates"]]
    assert [each.sequence for each in found] == [each["sequence"] for each in own["candidates"]]
    assert np.shape(wired.post("/hf/gaps", {"inputs": "[MASK] is [MASK]"}).json) == (2, 5)
    for wrong, message in (("no mask", "has no"), ("[MASK]", "targets")):
        with pytest.raises(hub.errors.HfHubHTTPError, match=message):
            client(wired, "gaps").fill_mask(wrong, targets=["warm"] if message == "targets" else None)


def test_the_endpoint_describes_itself(wired: Live) -> None:
    for path in ("hf", "tei"):
        found = client(wired, "meaning", path=path, provider="hf-inference")
        assert found.get_endpoint_info()["model_id"] == "meaning"
        assert found.health_check() is True


def test_errors_are_the_clients_with_the_services_text(
    wired: Live, keyed: Live, failing: Callable[..., None]
) -> None:
    errors = hub.errors
    with pytest.raises(errors.HfHubHTTPError, match="there is no model 'nope'") as caught:
        client(wired, "nope").text_classification("a")
    assert caught.value.response.status_code == 404
    with pytest.raises(errors.HfHubHTTPError, match="send the key") as caught:
        client(keyed, "mood", key="another").text_classification("a")
    assert caught.value.response.status_code == 401
    failing(QueueFullError(100, 100, 2))
    with pytest.raises(errors.HfHubHTTPError, match="are waiting") as caught:
        client(wired, "mood").text_classification("a")
    assert caught.value.response.headers["retry-after"] == "2"
    failing(DeadlineExceededError(200))
    with pytest.raises((errors.HfHubHTTPError, errors.InferenceTimeoutError)):
        client(wired, "mood").text_classification("a")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", {}, {"inputs": 1}, {"inputs": [[1]]}, {"inputs": "a", "parameters": 3}]
)
def test_what_is_no_request_is_refused(wired: Live, body: Any) -> None:
    reply = wired.post("/hf/mood", body)
    assert reply.status in (400, 422) and set(reply.json) == {"error"}


def test_an_unknown_parameter_is_refused_and_an_unknown_field_beside_inputs_ignored(wired: Live) -> None:
    reply = wired.post("/hf/mood", {"inputs": "a", "parameters": {"generate_kwargs": {"a": 1}}})
    assert (reply.status, reply.json["error"]) == (
        422,
        "parameters.generate_kwargs: is not an option of this API",
    )
    assert wired.post("/hf/mood", {"inputs": "a", "options": {"use_cache": False}}).status == 200


def test_a_pipeline_of_a_task_that_is_not_served_here_is_refused_as_without_one(wired: Live) -> None:
    replies = [wired.post(path, {"inputs": "a"}).json for path in ("/hf/stories", "/hf/stories/pipeline/x")]
    assert replies[0] == replies[1] and "is for multiple_choice" in replies[0]["error"]
