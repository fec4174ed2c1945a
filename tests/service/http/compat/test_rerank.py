"""Reranking: this service's own /rerank, Cohere's official client, and requests as Jina's and others' send them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pydantic_core
import pytest

from bert.errors import DeadlineExceededError, QueueFullError
from service.http import request_body
from service.tasks.table import BY_PATH
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live, serving
from tests.support.problems import fields

QUERY, DOCUMENTS = "where is it warm", ["munich", "dull film", "a"]
Cohere = Callable[..., Any]


def scores_of(wired: Live, model: str = "cross") -> list[float]:
    """Return the sigmoid of the numbers that /classify gives the pairs."""
    pairs = {"text": QUERY, "text_pair": DOCUMENTS, "model": model}
    numbers = np.array([each["score"] for each in wired.post("/classify", pairs).json["results"]])
    return [float(score) for score in 1 / (1 + np.exp(-numbers))]


@pytest.fixture
def cohere() -> Iterator[Cohere]:
    """Make Cohere's clients, of version 1 or 2 of its API."""
    module = pytest.importorskip(
        "cohere", reason="the client `cohere` is not installed: `make clients` installs it"
    )
    with ExitStack() as opened:

        def make(live: Live, version: int = 2, key: str = KEY) -> Any:
            kind = module.ClientV2 if version == 2 else module.Client
            return opened.enter_context(kind(api_key=key, base_url=live.url))

        yield make


def test_the_own_endpoint_ranks_by_the_cross_encoder(wired: Live) -> None:
    reply = wired.post("/rerank", {"query": QUERY, "candidates": DOCUMENTS})
    BY_PATH["/rerank"].response.model_validate_json(reply.body, strict=True)
    assert reply.json["model"] == "cross"
    expected = scores_of(wired)
    assert [each["index"] for each in reply.json["results"]] == list(np.argsort(-np.array(expected)))
    for each in reply.json["results"]:
        assert each["score"] == pytest.approx(expected[each["index"]], abs=1e-6)
    best = wired.post("/rerank", {"query": QUERY, "candidates": DOCUMENTS, "top_k": 1}).json["results"]
    assert best == reply.json["results"][:1]


def test_without_a_cross_encoder_the_cosine_ranks(live: Live) -> None:
    reply = live.post("/rerank", {"query": QUERY, "candidates": DOCUMENTS})
    own = live.post("/similarity", {"text": QUERY, "candidates": DOCUMENTS}).json["results"]
    assert reply.json["model"] == "meaning"
    found = [(each["index"], each["score"]) for each in reply.json["results"]]
    assert [index for index, _ in found] == [each["index"] for each in own]
    assert [score for _, score in found] == pytest.approx([each["score"] for each in own], abs=1e-6)


def test_the_own_endpoint_refuses_what_it_does_not_know(wired: Live) -> None:
    assert fields(wired.post("/rerank", {"query": QUERY}))["candidates"] == "is required"
    assert "candidate" in fields(wired.post("/rerank", {"query": QUERY, "candidate": "a"}))
    assert "has no text" in fields(wired.post("/rerank", {"query": QUERY, "candidates": []}))["candidates"]
    asked = {"query": QUERY, "candidates": ["a"], "model": "mood"}
    assert "cannot rank" in fields(wired.post("/rerank", asked))["model"]
    both = wired.post("/rerank", {"query": QUERY, "documents": ["a"], "texts": ["a"]})
    assert fields(both) == {"documents and texts": "came together; send one of them"}


def test_the_root_path_answers_in_the_form_of_the_request(wired: Live) -> None:
    expected = sorted(scores_of(wired), reverse=True)
    tei = wired.post("/rerank", {"query": QUERY, "texts": DOCUMENTS}).json
    assert [each["score"] for each in tei] == pytest.approx(expected, abs=1e-6)
    jina = wired.post("/rerank", {"query": QUERY, "documents": DOCUMENTS, "unknown": 1}).json
    assert [each["relevance_score"] for each in jina["results"]] == pytest.approx(expected, abs=1e-6)
    assert wired.post("/rerank", {"query": QUERY, "texts": []}).json["error_type"] == "Empty"
    refused = wired.post("/rerank", {"query": QUERY, "documents": [1]})
    assert refused.status == 400 and refused.json["message"] == refused.json["detail"]


@pytest.mark.parametrize("field", ["candidates", "documents", "texts"])
def test_a_body_is_parsed_once(wired: Live, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    bodies, from_json = list[bytes](), pydantic_core.from_json

    def counted(body: bytes) -> object:
        bodies.append(body)
        return from_json(body)

    monkeypatch.setattr(request_body, "from_json", counted)
    asked = json.dumps({"query": QUERY, field: DOCUMENTS}).encode()
    assert wired.post("/rerank", asked).status == 200
    assert bodies == [asked]


def test_cohere_v2(wired: Live, cohere: Cohere) -> None:
    found = cohere(wired).rerank(model="cross", query=QUERY, documents=DOCUMENTS, top_n=2)
    expected = scores_of(wired)
    assert [each.index for each in found.results] == list(np.argsort(-np.array(expected)))[:2]
    for each in found.results:
        assert each.relevance_score == pytest.approx(expected[each.index], abs=1e-6)
    assert found.id and found.meta.api_version.version == "2"


def test_cohere_v1_reads_objects_and_returns_documents(wired: Live, cohere: Cohere) -> None:
    documents = ["munich", {"text": "dull film"}]
    found = cohere(wired, version=1).rerank(
        model="cross", query=QUERY, documents=documents, return_documents=True
    )
    assert {each.index: each.document.text for each in found.results} == {0: "munich", 1: "dull film"}


def test_embeddings_rank_with_a_warning(wired: Live, cohere: Cohere) -> None:
    found = cohere(wired).rerank(model="meaning", query=QUERY, documents=DOCUMENTS)
    own = wired.post("/similarity", {"text": QUERY, "candidates": DOCUMENTS}).json["results"]
    assert [each.index for each in found.results] == [each["index"] for each in own]
    assert "embeddings" in found.meta.warnings[0]


def test_cohere_raises_its_own_errors(
    wired: Live, keyed: Live, cohere: Cohere, failing: Callable[..., None]
) -> None:
    import cohere as module

    asked = {"query": QUERY, "documents": ["a"]}
    with pytest.raises(module.NotFoundError, match="there is no model 'nope'"):
        cohere(wired).rerank(model="nope", **asked)
    with pytest.raises(module.BadRequestError, match="has no text"):
        cohere(wired).rerank(model="cross", query=QUERY, documents=[])
    with pytest.raises(module.BadRequestError, match="cannot rank"):
        cohere(wired).rerank(model="mood", **asked)
    with pytest.raises(module.UnauthorizedError):
        cohere(keyed, key="another").rerank(model="meaning", **asked)
    once = {"request_options": {"max_retries": 0}}
    failing(QueueFullError(100, 100, 2))
    with pytest.raises(module.TooManyRequestsError, match="are waiting"):
        cohere(wired).rerank(model="cross", **asked, **once)
    failing(DeadlineExceededError(200))
    with pytest.raises(module.GatewayTimeoutError, match="no answer within"):
        cohere(wired).rerank(model="cross", **asked, **once)


def test_jina_and_others_find_what_they_read(wired: Live) -> None:
    asked = {"model": "cross", "query": QUERY, "documents": DOCUMENTS, "top_n": 0, "return_documents": True}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        found = wired.post(path, asked).json
        assert found["object"] == "rerank" and found["model"] == "cross"
        assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 0
        assert all(each["document"]["text"] == DOCUMENTS[each["index"]] for each in found["results"])
    assert wired.post("/v1/rerank", asked | {"documents": "munich"}).status == 400
    refused = wired.post("/v1/rerank", asked | {"documents": None})
    assert refused.status == 400
    assert refused.json["detail"] == refused.json["message"] == refused.json["error"]["message"]


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        ("max_tokens_per_doc", [None, 4096, 32], [31, 1]),
        ("max_chunks_per_doc", [None, 1], [10]),
        ("rank_fields", [None, ["text"]], [["title"], ["text", "title"]]),
        ("relevant_spans", [None], [{"mode": "enabled"}]),
        ("priority", [None, 0], [3]),
        ("truncate_prompt_tokens", [None, -1, 4096], [8]),
        ("truncation_side", [None, "right"], ["left"]),
    ],
)
def test_an_option_is_refused_unless_it_says_what_is_done(
    wired: Live, option: str, taken: list[object], refused: list[object]
) -> None:
    asked = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}
    plain = wired.post("/v2/rerank", asked).json["results"]
    for value in taken:
        assert wired.post("/v2/rerank", asked | {option: value}).json["results"] == plain, value
    for value in refused:
        reply = wired.post("/v2/rerank", asked | {option: value})
        assert reply.status == 400 and reply.json["error"]["param"] == option, reply.json


def test_without_vllms_activation_the_scores_are_raw(wired: Live) -> None:
    asked = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}
    raw = wired.post("/rerank", asked | {"raw_scores": True}).json["results"]
    assert wired.post("/rerank", asked | {"use_activation": False}).json["results"] == raw
    for taken in ({"use_activation": True}, {"use_activation": None}):
        assert (
            wired.post("/rerank", asked | taken).json["results"]
            == wired.post("/rerank", asked).json["results"]
        )


def test_documents_are_cut_and_named(wired: Live) -> None:
    asked = {"model": "cross", "query": QUERY, "documents": ["a", "warm " * 100]}
    found = wired.post("/v2/rerank", asked).json
    assert found["meta"]["warnings"] == ["cut at the model's length: documents [1]"]
    assert wired.post("/v2/rerank", asked | {"truncate": False}).status == 400


def test_without_wires_the_path_is_this_services_alone(bundles: Any) -> None:
    with serving(bundles=[bundles], wires="none") as bare:
        assert bare.post("/rerank", {"query": QUERY, "candidates": DOCUMENTS}).status == 200
        assert "documents" in fields(bare.post("/rerank", {"query": QUERY, "documents": DOCUMENTS}))
        for path in (
            "/v1/embeddings",
            "/v2/rerank",
            "/tei/embed",
            "/hf/mood",
            "/v2/models/mood/infer",
            "/invocations",
        ):
            assert bare.post(path, {}).status == 404, path
        assert set(bare.get("/openapi.json").json["paths"]) & {"/v1/embeddings", "/ping"} == set()
