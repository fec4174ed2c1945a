"""What a request may ask of /qa and /ner beside texts, over a real socket."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import Live, serving
from tests.support.problems import fields
from tests.support.tiny import SPECS, write_tiny_bundle

PASSAGE = "the film was in munich and it was warm and angela merkel met it " * 3
ASKED = {"question": "where was it", "context": PASSAGE, "top_k": 4}
WRONG_SHARES = ["NaN", "Infinity", "-Infinity", "1e999", "-0.01", "1.01", "true", '"0.5"', "[]", "{}"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a model for questions that knows of no answer, one that does not, and one for entities."""
    folder: Path = tmp_path_factory.mktemp("options")
    write_tiny_bundle(folder / "reader", "reader", SPECS["reader"], 5)
    write_tiny_bundle(folder / "sure", "sure", replace(SPECS["reader"], allows_no_answer=False), 5)
    write_tiny_bundle(folder / "names", "names", SPECS["names"], 4)
    with serving(bundles=[folder], default_models={"qa": "reader"}) as running:
        yield running


def answer(live: Live, **options: object) -> dict[str, Any]:
    reply = live.post("/qa", ASKED | options)
    assert reply.status == 200, reply.body
    result: dict[str, Any] = reply.json["results"][0]
    return result


def test_the_answer_is_null_where_its_score_passes_the_threshold(live: Live) -> None:
    own = answer(live, top_k=20)
    spans = [] if own["answer"] is None else [{k: own[k] for k in ("answer", "score", "start", "end")}]
    spans += own["alternatives"]
    best, rest = spans[0], spans[1:]
    none = score = own["no_answer_score"]
    assert 0 < none < 1
    for threshold in (0, score * 0.99):
        found = answer(live, no_answer_threshold=threshold)
        assert found["answer"] is found["start"] is found["end"] is None
        assert found["score"] == found["no_answer_score"] == none
        assert found["alternatives"] == [best, *rest][:3]
    for threshold in (score, 1):
        found = answer(live, no_answer_threshold=threshold)
        assert {k: found[k] for k in best} == best
        assert (found["no_answer_score"], found["alternatives"]) == (none, rest[:3])


def test_without_a_threshold_the_models_own_rule_stands(live: Live) -> None:
    assert live.post("/qa", ASKED).body == live.post("/qa", ASKED | {"no_answer_threshold": None}).body


def test_a_model_that_always_answers_takes_no_threshold(live: Live) -> None:
    reply = live.post("/qa", ASKED | {"model": "sure", "no_answer_threshold": 0.5})
    assert fields(reply) == {
        "no_answer_threshold": "is 0.5, but model 'sure' was not trained on questions without an answer and always gives "
        "one: leave it out"
    }
    assert live.post("/qa", ASKED | {"model": "sure"}).json["results"][0]["no_answer_score"] == 0


@pytest.mark.parametrize("value", WRONG_SHARES)
def test_a_threshold_is_a_number_from_0_to_1(live: Live, value: str) -> None:
    body = b'{"question": "a", "context": "b", "no_answer_threshold": %s}' % value.encode()
    message = fields(live.post("/qa", body))["no_answer_threshold"]
    assert message.startswith("must be a number from 0 to 1, not ")
