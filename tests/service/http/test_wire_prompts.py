"""Prompts by name, dot products and vectors of any length, over a real socket."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.tasks.spec import DenseLayer, TaskSpec
from tests.support.live import Live, serving
from tests.support.tiny import SPECS, write_tiny_bundle

ASKS = TaskSpec(
    "similarity",
    pooling="max+mean",
    dense=(DenseLayer(24),),
    normalize=False,
    similarity="dot",
    prompts={"query": "who is ", "document": ""},
    default_prompt_name="query",
    max_tokens=16,
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a model of prompts, one without, and a cross-encoder."""
    folder: Path = tmp_path_factory.mktemp("prompts")
    write_tiny_bundle(folder / "asks", "asks", ASKS, 1)
    write_tiny_bundle(folder / "meaning", "meaning", SPECS["meaning"], 2)
    ranks = TaskSpec(
        "classification", ("score",), "regression", activation="sigmoid", pair=True, max_tokens=16
    )
    write_tiny_bundle(folder / "ranks", "ranks", ranks, 3)
    write_tiny_bundle(folder / "numbers", "numbers", replace(ranks, activation=""), 3)
    with serving(bundles=[folder], default_models={"similarity": "asks"}) as running:
        yield running


def vectors(live: Live, text: list[str], **more: str) -> np.ndarray:
    reply = live.post("/embed", {"text": text, **more})
    assert reply.status == 200, reply.body
    return np.array([result["embedding"] for result in reply.json["results"]])


def test_a_prompt_is_put_before_each_text(live: Live) -> None:
    texts = ["angela merkel", "the film"]
    plain = vectors(live, texts, prompt_name="")
    assert plain.shape == (2, 24)
    assert np.array_equal(vectors(live, texts, prompt_name="document"), plain)
    asked = vectors(live, [f"who is {text}" for text in texts], prompt_name="")
    assert np.array_equal(vectors(live, texts, prompt_name="query"), asked)
    assert np.array_equal(vectors(live, texts), asked)  # the default
    assert not np.allclose(asked, plain)


def test_vectors_keep_their_length(live: Live) -> None:
    assert abs(np.linalg.norm(vectors(live, ["the film"])[0]) - 1) > 0.1
    assert abs(np.linalg.norm(vectors(live, ["the film"], model="meaning")[0]) - 1) < 1e-5


def test_similarity_ranks_by_dot_product_each_side_with_its_prompt(live: Live) -> None:
    candidates = ["angela", "the film was long", "paris", "munich"]
    reply = live.post(
        "/similarity", {"text": "merkel", "candidates": candidates, "candidates_prompt_name": "document"}
    )
    assert reply.status == 200, reply.body
    query = vectors(live, ["who is merkel"], prompt_name="")[0]
    wanted = vectors(live, candidates, prompt_name="") @ query
    found = {result["index"]: result["score"] for result in reply.json["results"]}
    assert list(found) == np.argsort(-wanted, kind="stable").tolist()
    np.testing.assert_allclose([found[n] for n in range(4)], wanted, rtol=1e-4)
    assert np.abs(wanted).max() > 1


@pytest.mark.parametrize(
    ("path", "field", "more"),
    [
        ("/embed", "prompt_name", {}),
        ("/similarity", "prompt_name", {"candidates": "a"}),
        ("/similarity", "candidates_prompt_name", {"candidates": ["a", "b"]}),
    ],
)
def test_an_unknown_prompt_is_refused_with_the_names(
    path: str, field: str, more: dict[str, object], live: Live
) -> None:
    reply = live.post(path, {"text": "a", field: "passage", **more})
    assert reply.status == 422
    assert field in str(reply.json) and "its prompts are query, document" in str(reply.json)
    reply = live.post(path, {"text": "a", field: "query", "model": "meaning", **more})
    assert reply.status == 422 and "model 'meaning' has no prompt 'query'; it has none" in str(reply.json)


def test_models_tell_their_prompts(live: Live) -> None:
    models = {model["name"]: model for model in live.get("/models").json["models"]}
    assert models["asks"]["prompts"] == ASKS.prompts
    assert models["asks"]["default_prompt_name"] == "query"
    assert (models["meaning"]["prompts"], models["meaning"]["default_prompt_name"]) == ({}, None)


def test_a_cross_encoders_score_goes_through_its_sigmoid(live: Live) -> None:
    pair = {"text": "who met angela", "text_pair": ["angela met merkel", "the film was dull"]}
    score, number = (
        np.array([r["score"] for r in live.post("/classify", {**pair, "model": m}).json["results"]])
        for m in ("ranks", "numbers")
    )
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-number)), rtol=1e-5)
