"""Vectors of tokens over a real socket: /embed in its forms, /rerank by MaxSim, TEI, vLLM and Jina; what is refused."""

from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert.bundle import read_bundle
from bert.config import BertConfig
from bert.tasks.vectors.token_vectors import SIDES, encode, maxsim
from bert.tokenizer import Tokenizer
from model_export.verify.precision import GraphSession, packer_for
from model_export.verify.texts import make_text
from service.tasks.table import BY_PATH
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.problems import fields
from tests.support.token_vectors import BODY, HOW, SPEC, WIDTH, write_tokens_bundle

Floats = NDArray[np.float32]
TEXTS = ["the film was warm.", "angela merkel met in paris, and munich", "🙂 北京", "", "how long is it"]
LONG = "a film " * 30


@pytest.fixture(scope="module")
def opened(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with two models of token vectors, beside one of embeddings."""
    folder = tmp_path_factory.mktemp("tokens")
    write_tokens_bundle(folder / "tokens")
    write_tokens_bundle(folder / "averaged", "averaged", mean=True)
    models = {"token_vectors": "tokens"}
    limits: dict[str, Any] = {"default_models": models, "max_response_bytes": 200_000}
    with serving(bundles=[folder, bundles / "meaning"], **limits) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Floats]]:
    """Side → the vectors of TEXTS by the graph itself, each text alone."""
    folder = tmp_path_factory.mktemp("expected")
    write_tokens_bundle(folder / "tokens")
    bundle = read_bundle(folder / "tokens")
    tokenizer = Tokenizer.load(bundle.tokenizer_path)
    session = GraphSession(bundle.model_path, packer_for(BertConfig.from_dict(BODY), "fp32"))
    return {
        side: session.alone(
            [
                make_text(encode(text, number, tokenizer, SPEC, truncate=True), SPEC.task)
                for text in tokenizer.pieces(TEXTS)
            ]
        )
        for side, number in SIDES.items()
    }


def ask(live: Live, text: object, **more: object) -> list[dict[str, Any]]:
    reply = live.post("/embed", {"text": text, "model": "tokens", **more})
    assert reply.status == 200, reply.body
    BY_PATH["/embed"].response.model_validate_json(reply.body, strict=True)
    return list(reply.json["results"])


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_text_has_a_vector_for_each_token(
    side: str, opened: Live, expected: dict[str, list[Floats]]
) -> None:
    """Queries are filled up to one length; documents have no vectors of punctuation."""
    found = ask(opened, TEXTS, side=side)
    for result, vectors in zip(found, expected[side], strict=True):
        assert result.keys() == {"tokens", "truncated"} and not result["truncated"]
        assert np.array(result["tokens"]) == pytest.approx(vectors, abs=1e-5)
    counts = [len(result["tokens"]) for result in found]
    assert counts == ([HOW.query_length] * 5 if side == "query" else [7, 10, 6, 3, 7])
    assert np.linalg.norm(found[0]["tokens"], axis=1) == pytest.approx(1)


def test_documents_are_the_default_and_so_is_the_model(
    opened: Live, expected: dict[str, list[Floats]]
) -> None:
    for more in ({}, {"vectors": "tokens"}):
        (result,) = ask(opened, TEXTS[0], **more)
        assert np.array(result["tokens"]) == pytest.approx(expected["document"][0], abs=1e-5)
    reply = opened.post("/embed", {"text": TEXTS[0], "vectors": "tokens"})
    assert reply.json["model"] == "tokens"
    reply = opened.post("/embed", {"text": TEXTS[0], "vectors": "dense"})
    assert reply.json["model"] == "meaning" and "embedding" in reply.json["results"][0]
    assert opened.post("/embed", {"text": TEXTS[0]}).json["model"] == "meaning"


def test_vectors_come_in_base64_and_as_a_file(opened: Live, expected: dict[str, list[Floats]]) -> None:
    found = ask(opened, TEXTS, encoding_format="base64", side="query")
    for result, vectors in zip(found, expected["query"], strict=True):
        read = [np.frombuffer(b64decode(each), "<f4") for each in result["tokens"]]
        assert np.stack(read) == pytest.approx(vectors, abs=1e-5)
    body = {"text": [*TEXTS[:2], LONG], "model": "tokens", "encoding_format": "binary", "truncate": True}
    reply = opened.post("/embed", body)
    rows, counts = np.load(BytesIO(reply.body)), [int(n) for n in reply.headers["x-vectors"].split(",")]
    assert rows.shape == (sum(counts), WIDTH) and counts == [7, 10, HOW.document_length]
    parts = np.split(rows, np.cumsum(counts)[:-1])
    assert parts[1] == pytest.approx(expected["document"][1], abs=1e-5)
    assert reply.headers["x-truncated"] == "2" and reply.headers["x-model"] == "tokens"


@pytest.mark.parametrize("model", ["tokens", "averaged"])
def test_rerank_is_maxsim(model: str, opened: Live, expected: dict[str, list[Floats]]) -> None:
    scores = maxsim(expected["query"][0], expected["document"], mean=model == "averaged")
    order = np.argsort(-scores, kind="stable")
    asked = {"query": TEXTS[0], "model": model}
    reply = opened.post("/rerank", {**asked, "candidates": TEXTS})
    results = reply.json["results"]
    assert [each["index"] for each in results] == order.tolist()
    assert [each["score"] for each in results] == pytest.approx(scores[order], abs=1e-4)
    assert (max(scores) > 2) == (model == "tokens")  # a sum over the query's tokens
    cohere = opened.post("/v2/rerank", {**asked, "documents": TEXTS, "top_n": 2}).json
    assert [each["relevance_score"] for each in cohere["results"]] == pytest.approx(
        scores[order[:2]], abs=1e-4
    )
    assert "warnings" not in cohere["meta"]
    default = opened.post("/rerank", {"query": TEXTS[0], "candidates": TEXTS}).json
    assert default["model"] == "tokens"
    tei = opened.post("/rerank", {"query": TEXTS[0], "texts": TEXTS[:3]}).json
    assert {each["index"] for each in tei} == set(range(3))


def test_other_servers_clients_get_them_in_their_forms(
    opened: Live, expected: dict[str, list[Floats]]
) -> None:
    documents, query = expected["document"], expected["query"]
    found = opened.post("/tei/tokens/embed_all", {"inputs": TEXTS[:3]}).json
    assert [np.array(each) for each in found][1] == pytest.approx(documents[1], abs=1e-5)
    found = opened.post("/tei/embed_all", {"inputs": "the film was warm.", "prompt_name": "query"}).json
    assert np.array(found[0]) == pytest.approx(query[0], abs=1e-5)
    found = opened.post("/pooling", {"input": TEXTS[:2], "model": "tokens", "task": "token_embed"}).json
    assert [each["index"] for each in found["data"]] == [0, 1] and found["data"][0]["object"] == "pooling"
    assert np.array(found["data"][1]["data"]) == pytest.approx(documents[1], abs=1e-5)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0 and found["object"] == "list"
    found = opened.post("/pooling", {"input": TEXTS[0], "side": "query", "encoding_format": "base64"}).json
    assert len(b64decode(found["data"][0]["data"])) == HOW.query_length * WIDTH * 4
    found = opened.post(
        "/v1/multi-vector", {"input": TEXTS[:1], "input_type": "query", "model": "tokens"}
    ).json
    assert np.array(found["data"][0]["embeddings"]) == pytest.approx(query[0], abs=1e-5)
    scores = maxsim(query[0], documents)
    for path in ("/score", "/v1/score"):
        found = opened.post(path, {"text_1": TEXTS[0], "text_2": TEXTS}).json
        assert [each["score"] for each in found["data"]] == pytest.approx(scores, abs=1e-4)
        assert found["data"][3]["object"] == "score"


@pytest.mark.parametrize(
    ("changed", "field", "message"),
    [
        ({"vectors": "dense"}, "vectors", "is 'dense'; model 'tokens' gives token vectors"),
        ({"model": "meaning", "vectors": "tokens"}, "vectors", "is 'tokens'; model 'meaning' gives dense"),
        ({"model": "meaning", "side": "query"}, "side", "is 'query'; model 'meaning' gives dense"),
        ({"dimensions": 8}, "dimensions", "is '8'; model 'tokens' gives token vectors"),
        ({"prompt_name": "query"}, "prompt_name", "is 'query'; model 'tokens' gives token vectors"),
        ({"embedding_type": "int8"}, "embedding_type", "is 'int8'; model 'tokens' gives token vectors"),
        ({"side": "both"}, "side", "'query' or 'document'"),
        ({"text": LONG}, "text", "the text has 63 tokens and the model reads at most 32"),
        ({"text": LONG, "side": "query"}, "text", "63 tokens and the model reads at most 12"),
        (
            {"text": [LONG] * 60, "truncate": True},
            "text",
            f"up to {60 * (80 + 32 * WIDTH * 12)} bytes, and one may take 200000",
        ),
    ],
)
def test_what_is_refused_names_value_and_rule(
    changed: dict[str, Any], field: str, message: str, opened: Live
) -> None:
    before = opened.metric("bert_batch_texts_sum")
    reply = opened.post("/embed", {"text": TEXTS[0], "model": "tokens", **changed})
    assert reply.status == 422 and message in fields(reply)[field], reply.body
    assert opened.metric("bert_batch_texts_sum") == before


def test_more_vectors_than_a_response_may_take_are_not_compared(opened: Live) -> None:
    reply = opened.post("/rerank", {"query": "a", "candidates": [LONG] * 120, "truncate": True})
    size = (12 + 120 * 32) * WIDTH * 4
    assert reply.status == 422
    assert f"take {size} bytes, and they may take 200000" in fields(reply)["candidates"], reply.body


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tei/tokens/embed_all", {"inputs": "a", "prompt_name": "x"}, "prompt_name: is 'x'"),
        ("/tei/tokens/embed_all", {"inputs": "a", "dimensions": 4}, "dimensions: is '4'"),
        ("/pooling", {"input": "a", "task": "embed"}, "only token_embed is done here"),
        ("/pooling", {"input": "a", "model": "meaning"}, "'meaning' is for similarity"),
        ("/v1/multi-vector", {"input": "a", "dimensions": 4}, "vectors are as long as the model gives them"),
        ("/v1/multi-vector", {"input": "a", "input_type": "passage"}, "input_type"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b"]}, "holds 2 texts, and must be one"),
    ],
)
def test_the_other_forms_refuse_in_their_own_words(
    path: str, body: dict[str, Any], message: str, opened: Live
) -> None:
    reply = opened.post(path, body)
    assert reply.status in (400, 422) and message in reply.body.decode(), reply.body


def test_lines_and_the_list_of_models(opened: Live, expected: dict[str, list[Floats]]) -> None:
    lines = [{"text": text, "model": "tokens", "side": "query"} for text in TEXTS]
    found = post_lines(opened, "/embed", lines_of(*lines))
    for line, vectors in zip(found, expected["query"], strict=True):
        assert np.array(line["results"][0]["tokens"]) == pytest.approx(vectors, abs=1e-5)
    (model,) = [each for each in opened.get("/models").json["models"] if each["name"] == "tokens"]
    assert (model["task"], model["embedding_size"]) == ("token_vectors", WIDTH)
