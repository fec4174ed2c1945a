"""Each endpoint over a real socket: what it answers, in which order, for which forms of a request."""

import json
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bert.errors import InvalidRequestError
from bert.tasks.spec import TaskSpec
from service.engine.models import Model
from service.http.operations import ModelsResponse
from service.pipeline.inputs import Texts
from service.tasks.classification import check_pair
from tests.support.endpoints import TASK_ENDPOINTS
from tests.support.live import Live

LONG = "angela merkel met a funny film in munich and " * 40
ODD_TEXTS = [
    "München ist schön",
    "北京 is a city",
    "🙂 film 👩‍👩‍👧 munich",
    "e\u0301te\u0301",
    "שלום munich",
    "a  b\tc\nd\u0000",
]


def test_one_string_gives_a_list_of_one_result(live: Live) -> None:
    reply = live.post("/classify", {"text": "a warm film"})
    assert reply.status == 200
    assert reply.json["model"] == "mood"
    (result,) = reply.json["results"]
    assert result["label"] == result["scores"][0]["label"]
    assert {score["label"] for score in result["scores"]} == {"negative", "positive"}
    assert sum(score["score"] for score in result["scores"]) == pytest.approx(1)
    assert result["truncated"] is False
    assert reply.json["usage"] == {"tokens": 5}


def test_a_list_gives_results_in_its_order(live: Live) -> None:
    texts = ["a warm film", "dull", "paris is long and funny", "", "it was not dull"]
    alone = [live.post("/classify", {"text": text}).json["results"][0] for text in texts]
    together = live.post("/classify", {"text": texts}).json["results"]
    for one, other in zip(alone, together, strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def test_top_k_keeps_the_best_labels(live: Live) -> None:
    (result,) = live.post("/classify", {"text": "dull", "top_k": 1}).json["results"]
    assert [score["label"] for score in result["scores"]] == [result["label"]]


def test_an_empty_text_is_classified_as_the_model_reads_it(live: Live) -> None:
    reply = live.post("/classify", {"text": ""})
    assert reply.status == 200
    assert reply.json["usage"] == {"tokens": 2}


def test_multi_label_scores_are_independent(live: Live) -> None:
    (result,) = live.post("/classify", {"text": "a film", "model": "topics"}).json["results"]
    scores = [score["score"] for score in result["scores"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) != pytest.approx(1, abs=1e-3)


def test_regression_gives_the_number_itself(live: Live) -> None:
    (result,) = live.post("/classify", {"text": "a film", "model": "stars"}).json["results"]
    assert result["label"] == "stars"
    assert result["scores"] == [{"label": "stars", "score": result["score"]}]


def test_pairs_are_two_strings_two_lists_or_one_string_with_a_list(live: Live) -> None:
    def scores(text: object, pair: object) -> list[float]:
        reply = live.post("/classify", {"text": text, "text_pair": pair, "model": "entailment"})
        assert reply.status == 200, reply.body
        return [result["scores"][0]["score"] for result in reply.json["results"]]

    one, two = scores("a film", "dull"), scores("a film", "paris is warm")
    assert scores("a film", ["dull", "paris is warm"]) == pytest.approx(one + two, abs=1e-5)
    assert scores(["a film"] * 2, ["dull", "paris is warm"]) == pytest.approx(one + two, abs=1e-5)
    assert len(scores(["a film", "it"], "dull")) == 2


def test_entities_are_slices_of_the_text(live: Live) -> None:
    texts = ["angela merkel met a film in munich", "", "   ", LONG, *ODD_TEXTS]
    results = live.post("/ner", {"text": texts}).json["results"]
    assert len(results) == len(texts)
    for text, result in zip(texts, results, strict=True):
        for entity in result["entities"]:
            assert entity["text"] == text[entity["start"] : entity["end"]] != ""
            assert entity["label"] in ("PER", "LOC")
            assert 0 <= entity["score"] <= 1
    assert results[1]["entities"] == results[2]["entities"] == []
    assert results[3]["entities"]


def test_a_document_is_read_in_windows_to_its_end(live: Live) -> None:
    reply = live.post("/ner", {"text": LONG})
    assert reply.json["usage"]["tokens"] > 360
    assert max(entity["end"] for entity in reply.json["results"][0]["entities"]) > 0.8 * len(LONG)


def test_candidates_are_ranked_best_first(live: Live) -> None:
    body = {"text": "a warm film", "candidates": ["dull", "a warm film", "munich"]}
    results = live.post("/similarity", body).json["results"]
    assert results[0]["index"] == 1
    assert results[0]["score"] == pytest.approx(1, abs=1e-5)
    assert [r["score"] for r in results] == sorted((r["score"] for r in results), reverse=True)
    assert {result["text_index"] for result in results} == {0}


def test_each_text_of_a_list_gets_its_own_ranking(live: Live) -> None:
    body = {"text": ["munich", "dull"], "candidates": ["dull", "munich", "paris"], "top_k": 1}
    results = live.post("/similarity", body).json["results"]
    assert [(result["text_index"], result["index"]) for result in results] == [(0, 1), (1, 0)]


def test_similarity_is_the_cosine_of_the_embeddings(live: Live) -> None:
    texts = ["a warm film", "munich was dull", "who is it"]
    vectors = np.array([r["embedding"] for r in live.post("/embed", {"text": texts}).json["results"]])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    results = live.post("/similarity", {"text": texts[0], "candidates": texts}).json["results"]
    for result in results:
        assert result["score"] == pytest.approx(vectors[0] @ vectors[result["index"]], abs=1e-5)


def test_answers_are_slices_of_their_context_or_null(live: Live) -> None:
    contexts = ["angela merkel met a film in munich", LONG, *ODD_TEXTS]
    body = {"question": "who met it", "context": contexts, "top_k": 3, "max_answer_tokens": 4}
    results = live.post("/qa", body).json["results"]
    assert len(results) == len(contexts)
    for context, result in zip(contexts, results, strict=True):
        if result["answer"] is None:
            assert result["start"] is result["end"] is None
        else:
            assert result["answer"] == context[result["start"] : result["end"]] != ""
        for span in result["alternatives"]:
            assert span["answer"] == context[span["start"] : span["end"]]
        assert 0 <= result["no_answer_score"] <= 1


def test_top_k_is_a_limit_that_no_score_depends_on(live: Live) -> None:
    body = {"question": "who met it", "context": LONG}
    most, some, one = (live.post("/qa", body | {"top_k": k}).json["results"][0] for k in (100, 3, 1))
    n_best = 20
    assert len(most["alternatives"]) == (n_best if most["answer"] is None else n_best - 1)
    for fewer in (some, one):
        assert {**fewer, "alternatives": []} == {**most, "alternatives": []}
        assert fewer["alternatives"] == most["alternatives"][: len(fewer["alternatives"])]
    assert (len(some["alternatives"]), one["alternatives"]) == (2, [])


def test_questions_and_contexts_go_together_like_pairs(live: Live) -> None:
    def answers(question: object, context: object) -> list[Any]:
        return list(live.post("/qa", {"question": question, "context": context}).json["results"])

    both = answers(["who", "where"], ["angela met a film", "it was in paris"])
    assert [r["answer"] for r in both] == [
        answers("who", "angela met a film")[0]["answer"],
        answers("where", "it was in paris")[0]["answer"],
    ]
    assert len(answers(["who", "where", "how"], "angela met a film")) == 3
    assert len(answers("who", ["angela", "paris"])) == 2


def test_tokens_show_what_the_model_reads(live: Live) -> None:
    text = "Munich: films!"
    (result,) = live.post("/tokenize", {"text": text}).json["results"]
    assert [token["text"] for token in result["tokens"] if token["special"]] == ["[CLS]", "[SEP]"]
    inside = [token for token in result["tokens"] if not token["special"]]
    assert [t["text"] for t in inside] == ["munich", ":", "film", "##s", "!"]
    assert [text[t["start"] : t["end"]] for t in inside] == ["Munich", ":", "film", "s", "!"]


def test_tokenize_takes_any_length_and_any_model(live: Live) -> None:
    reply = live.post("/tokenize", {"text": [LONG, ""], "model": "reader"})
    assert reply.json["model"] == "reader"
    assert [len(result["tokens"]) for result in reply.json["results"]] == [9 * 40 + 2, 2]


def test_truncation_happens_on_request_only_and_is_told(live: Live) -> None:
    for path, extra in (("/classify", {}), ("/embed", {}), ("/similarity", {"candidates": "dull"})):
        refused = live.post(path, {"text": ["dull", LONG], **extra})
        assert refused.status == 422
        assert refused.json["errors"] == [
            {"field": "text[1]", "message": "the text has 362 tokens and the model reads at most 32"}
        ]
        reply = live.post(path, {"text": ["dull", LONG], "truncate": True, **extra})
        assert [result["truncated"] for result in reply.json["results"]] == [False, True]


def test_models_are_listed_with_what_a_client_needs(live: Live) -> None:
    models = {model["name"]: model for model in live.get("/models").json["models"]}
    assert set(models) == {
        "mood",
        "entailment",
        "topics",
        "stars",
        "names",
        "reader",
        "meaning",
        "stories",
        "gaps",
    }
    assert models["mood"]["default"] is True
    assert models["topics"]["default"] is False
    assert models["entailment"]["pair"] is True
    assert models["names"]["labels"][0] == "O"
    assert models["reader"]["max_tokens"] == 32
    ModelsResponse.model_validate(live.get("/models").json)


@pytest.mark.parametrize("endpoint", TASK_ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_answers_and_examples_are_what_the_schemas_say(live: Live, endpoint: Any) -> None:
    reply = live.post(endpoint.path, endpoint.sent)
    assert reply.status == 200, reply.body
    endpoint.response.model_validate_json(reply.body, strict=True)
    endpoint.request.model_validate(endpoint.sent)
    example = {"model": endpoint.model, "results": endpoint.results, "usage": {"tokens": 1}}
    endpoint.response.model_validate_json(json.dumps(example), strict=True)


def test_every_number_is_finite(live: Live) -> None:
    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            return [n for v in value.values() for n in numbers(v)]
        if isinstance(value, list):
            return [n for v in value for n in numbers(v)]
        return [value] if isinstance(value, float) else []

    for endpoint in TASK_ENDPOINTS:
        body = live.post(endpoint.path, endpoint.sent).body
        parsed = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert all(math.isfinite(number) for number in numbers(parsed))


@pytest.mark.parametrize(("reads_pairs", "refused"), [(None, ()), (False, ("b",)), (True, (None,))])
def test_a_model_that_does_not_say_takes_one_text_or_two(
    reads_pairs: bool | None, refused: tuple[str | None, ...]
) -> None:
    spec = TaskSpec("classification", ("bad", "good"), pair=reads_pairs)
    model = cast(Model, SimpleNamespace(name="reviews", spec=spec))
    for second in ("b", None):
        pair = None if second is None else Texts.of("text_pair", second)
        with pytest.raises(InvalidRequestError) if second in refused else nullcontext():
            check_pair(model, Texts.of("text", "a"), pair)
