"""/multiple-choice over a real socket: its forms, its order, what it refuses."""

from itertools import pairwise
from typing import Any

import pytest

from service.tasks.table import BY_PATH
from tests.support.live import Live, serving
from tests.support.problems import fields

PROMPTS = ["who met angela", "🙂 北京 is", "how long is the film"]
CHOICES = [
    ["angela merkel met paris", "it was dull", "merkel"],
    ["a city", "not a city"],
    ["long", "not long", "it is warm and funny and dull and long", "who"],
]
LONG = "angela merkel met a funny film in munich and " * 40


def ask(live: Live, prompt: object, choices: object, **more: object) -> list[dict[str, Any]]:
    reply = live.post("/multiple-choice", {"prompt": prompt, "choices": choices, **more})
    assert reply.status == 200, reply.body
    BY_PATH["/multiple-choice"].response.model_validate_json(reply.body, strict=True)
    assert reply.json["model"] == "stories"
    return list(reply.json["results"])


def test_the_choices_of_a_prompt_are_ranked_and_share_one_probability(live: Live) -> None:
    (result,) = ask(live, PROMPTS[0], CHOICES[0])
    scores = result["scores"]
    assert {key: result[key] for key in scores[0]} == scores[0]
    assert sorted(each["index"] for each in scores) == [0, 1, 2]
    assert all(each["choice"] == CHOICES[0][each["index"]] for each in scores)
    assert all(one["score"] >= other["score"] for one, other in pairwise(scores))
    assert sum(each["score"] for each in scores) == pytest.approx(1, abs=1e-6)
    assert result["truncated"] is False


def test_prompts_have_a_list_each_or_one_list_for_all(live: Live) -> None:
    alone = [ask(live, prompt, choices)[0] for prompt, choices in zip(PROMPTS, CHOICES, strict=True)]
    assert same(ask(live, PROMPTS, CHOICES), alone)
    shared = [ask(live, prompt, CHOICES[0])[0] for prompt in PROMPTS]
    assert same(ask(live, PROMPTS, CHOICES[0]), shared)
    lists = [ask(live, PROMPTS[0], choices)[0] for choices in CHOICES]
    assert same(ask(live, PROMPTS[0], CHOICES), lists)
    assert same(ask(live, PROMPTS[0], CHOICES[:1]), lists[:1])


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    ranked = [[(s["index"], s["choice"]) for s in result["scores"]] for result in found]
    scores = [s["score"] for result in found for s in result["scores"]]
    return ranked == [
        [(s["index"], s["choice"]) for s in result["scores"]] for result in expected
    ] and scores == pytest.approx([s["score"] for result in expected for s in result["scores"]], abs=1e-5)


def test_choices_of_one_prompt_may_run_in_different_batches(bundles: Any) -> None:
    """A batch of 64 tokens holds two of these pairs."""
    texts = [f"{choice} {'a film in munich ' * 3}" for choice in CHOICES[2]]
    with serving(bundles=[bundles / "stories"], batch_tokens=64, max_queue_tokens=4096) as small:
        whole = ask(small, PROMPTS[2], texts)
        assert small.metric("bert_batch_texts_count", model="stories") >= 2
        assert same(ask(small, PROMPTS[2], texts), whole)
        assert sum(score["score"] for score in whole[0]["scores"]) == pytest.approx(1, abs=1e-6)


def test_the_best_do_not_depend_on_how_many_are_asked_for(live: Live) -> None:
    (most,), (one,) = ask(live, PROMPTS[2], CHOICES[2]), ask(live, PROMPTS[2], CHOICES[2], top_k=1)
    assert one["scores"] == most["scores"][:1]
    assert (one["index"], one["choice"], one["score"]) == (most["index"], most["choice"], most["score"])


def test_a_pair_over_the_models_length_is_refused_or_cut(live: Live) -> None:
    body = {"prompt": [PROMPTS[0], LONG], "choices": ["it", "a dull film"]}
    message = "the text has 364 tokens and the model reads at most 32"
    assert fields(live.post("/multiple-choice", body))["prompt[1] with choices[0]"] == message
    results = ask(live, body["prompt"], body["choices"], truncate=True)
    assert [result["truncated"] for result in results] == [False, True]


def test_each_choice_of_each_prompt_counts_as_a_text(bundles: Any) -> None:
    with serving(bundles=[bundles / "stories"], max_texts_per_request=8) as small:
        assert len(ask(small, ["who", "it"], ["a", "b", "c"])) == 2
        for prompt, choices in (
            (["who", "it"], list("abcd")),
            ("who", list("abcdefgh")),
            ("who", [["a"] * 4] * 2),
        ):
            found = fields(small.post("/multiple-choice", {"prompt": prompt, "choices": choices}))
            assert found == {
                "prompt and choices": f"{'10' if prompt != 'who' else '9'} texts; a request may have 8 "
                "(max_texts_per_request): send them in several requests"
            }
        found = fields(small.post("/multiple-choice", {"prompt": "who", "choices": [["a"] * 5] * 2}))
        assert found["choices"].startswith("10 texts; a request may have 8")


def test_more_tokens_than_the_queue_holds_are_refused(bundles: Any) -> None:
    with serving(bundles=[bundles / "stories"], max_queue_tokens=512) as small:
        reply = small.post(
            "/multiple-choice", {"prompt": ["who met it"] * 60, "choices": ["a film", "munich"]}
        )
        assert reply.status == 413
        assert reply.json["type"] == "urn:bert-serve:request-too-large"


def test_it_is_counted_by_its_own_name(live: Live) -> None:
    labels = {"endpoint": "/multiple-choice", "model": "stories", "status": "200"}
    before = live.settled_metric("bert_request_duration_seconds_count", **labels)
    reply = live.post("/multiple-choice", {"prompt": PROMPTS[0], "choices": CHOICES[0]})
    assert {"tokenize", "queue", "inference", "decode"} <= {
        part.partition(";")[0].strip() for part in reply.headers["server-timing"].split(",")
    }
    assert live.settled_metric("bert_request_duration_seconds_count", **labels) == before + 1
