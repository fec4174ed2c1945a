"""Text Embeddings Inference: tei-client, and requests as other clients send them, on /tei."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from bert.errors import QueueFullError
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live, serving

TEXT = "héllo 🙂 film"


@pytest.fixture
def client() -> Iterator[Callable[[Live, str], Any]]:
    """Make tei-client's clients of a model; they are closed at the end."""
    module = pytest.importorskip(
        "tei_client", reason="tei-client is not installed: `make clients` installs it"
    )
    with ExitStack() as opened:

        def make(live: Live, model: str) -> Any:
            made = module.HttpClient(f"{live.url}/tei/{model}", timeout=60)
            opened.callback(made.client.close)
            return made

        yield make


def test_the_real_client_embeds_and_tokenizes(wired: Live, client: Callable[[Live, str], Any]) -> None:
    meaning = client(wired, "meaning")
    assert meaning.health() and meaning.info().server_model_type.value == "embedding"
    own = wired.post("/embed", {"text": "a film"}).json["results"][0]["embedding"]
    np.testing.assert_allclose(meaning.embed("a film"), [own], atol=1e-7)
    (found,) = meaning.tokenize(TEXT)
    words = [token for token in found.tokens if not token.special]
    assert [TEXT.encode()[token.start : token.stop].decode() for token in words] == [
        token.text for token in words
    ]
    assert meaning.decode([token.id for token in words][-1:]) == ["film"]


def test_the_real_client_classifies_and_ranks(wired: Live, client: Callable[[Live, str], Any]) -> None:
    own = wired.post("/classify", {"text": ["a film", "dull"]}).json["results"]
    found = client(wired, "mood").classify(["a film", "dull"])
    assert [each.scores[0].label for each in found] == [each["label"] for each in own]
    ranks = client(wired, "cross").rerank("where", ["munich", "dull film"], return_text=True).ranks
    assert {each.index: each.text for each in ranks} == {0: "munich", 1: "dull film"}
    assert ranks[0].score >= ranks[1].score


def test_one_text_is_a_list_of_lists(wired: Live) -> None:
    own = wired.post("/embed", {"text": "a film"}).json["results"][0]["embedding"]
    for path in ("/tei/meaning/embed", "/tei/embed", "/tei/meaning", "/tei/meaning/", "/tei"):
        reply = wired.post(path, {"inputs": "a film", "truncate": None, "normalize": False})
        assert reply.status == 200, path
        np.testing.assert_allclose(reply.json, [own], atol=1e-7)
    assert reply.headers["x-compute-tokens"] == "4"


def test_long_texts_are_cut_and_the_answer_says_which(wired: Live) -> None:
    texts = ["a", "the film was warm " * 20, "b"]
    reply = wired.post("/tei/embed", {"inputs": texts})
    assert len(reply.json) == 3 and reply.headers["x-truncated"] == "1"
    reply = wired.post("/tei/embed", {"inputs": texts, "truncate": False})
    assert (
        reply.status == 422
        and reply.json["error_type"] == "Validation"
        and "82 tokens" in reply.json["error"]
    )


def test_dimensions_are_the_first_numbers_of_length_one(wired: Live) -> None:
    whole = wired.post("/tei/embed", {"inputs": ["a", "b"]}).json
    cut = wired.post("/tei/embed", {"inputs": ["a", "b"], "dimensions": 8}).json
    first = np.array(whole)[:, :8]
    np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    assert wired.post("/tei/embed", {"inputs": "a", "dimensions": 33}).status == 422


def test_predict_reads_texts_pairs_and_batches(wired: Live) -> None:
    own = wired.post("/classify", {"text": ["a film", "dull"]}).json["results"]
    scores = [[{"score": s["score"], "label": s["label"]} for s in each["scores"]] for each in own]
    assert wired.post("/tei/mood/predict", {"inputs": "a film"}).json == scores[0]
    assert wired.post("/tei/mood/predict", {"inputs": [["a film"], ["dull"]]}).json == scores
    reply = wired.post("/tei/mood/predict", {"inputs": ["a film", "dull"]})
    assert reply.status == 424 and reply.json == {
        "error": "model 'mood' reads single texts",
        "error_type": "Backend",
    }
    pair = wired.post("/classify", {"text": "a", "text_pair": "b", "model": "entailment"}).json["results"][0]
    assert wired.post("/tei/entailment/predict", {"inputs": ["a", "b"]}).json[0]["label"] == pair["label"]
    both = wired.post("/tei/entailment/predict", {"inputs": [["a", "b"], ["b", "a"]]}).json
    assert [len(each) for each in both] == [3, 3]
    assert wired.post("/tei/mood/predict", {"inputs": [["a"], ["b", "c"]]}).status == 422


def test_one_label_is_a_sigmoid_unless_raw(wired: Live) -> None:
    number = wired.post("/classify", {"text": "a film", "model": "stars"}).json["results"][0]["score"]
    (raw,) = wired.post("/tei/stars/predict", {"inputs": "a film", "raw_scores": True}).json
    (shown,) = wired.post("/tei/stars/predict", {"inputs": "a film"}).json
    assert raw["score"] == pytest.approx(number, abs=1e-6)
    assert shown["score"] == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-6)


def test_raw_scores_are_the_numbers_before_softmax_or_sigmoid(wired: Live) -> None:
    def scores(model: str, *, raw: bool) -> dict[str, float]:
        reply = wired.post(f"/tei/{model}/predict", {"inputs": "a film", "raw_scores": raw})
        return {each["label"]: each["score"] for each in reply.json}

    for model, function in (("mood", special.softmax), ("topics", special.expit)):
        raw, shown = scores(model, raw=True), scores(model, raw=False)
        assert list(raw) == list(shown)
        np.testing.assert_allclose(list(shown.values()), function(list(raw.values())), atol=1e-6)


def test_a_cross_encoder_ranks_and_others_do_not(wired: Live) -> None:
    asked: dict[str, Any] = {
        "query": "where is it warm",
        "texts": ["munich", "dull film", "a"],
        "return_text": True,
    }
    pairs = {"text": asked["query"], "text_pair": asked["texts"], "model": "cross"}
    numbers = [each["score"] for each in wired.post("/classify", pairs).json["results"]]
    found = wired.post("/tei/cross/rerank", asked).json
    assert [each["index"] for each in found] == list(np.argsort(-np.array(numbers)))
    for each in found:
        assert each["score"] == pytest.approx(1 / (1 + np.exp(-numbers[each["index"]])), abs=1e-6)
        assert each["text"] == asked["texts"][each["index"]]
    raw = wired.post("/tei/cross/rerank", asked | {"raw_scores": True}).json
    assert raw[0]["score"] == pytest.approx(max(numbers), abs=1e-6)
    for model in ("mood", "meaning", "entailment"):
        assert wired.post(f"/tei/{model}/rerank", asked).status == 424


def test_similarity_keeps_the_order_of_the_request(wired: Live) -> None:
    sentences = ["a film", "munich", "dull"]
    asked = {"inputs": {"source_sentence": "a", "sentences": sentences}, "parameters": {"truncate": None}}
    own = wired.post("/similarity", {"text": "a", "candidates": sentences}).json["results"]
    expected = [each["score"] for each in sorted(own, key=lambda each: each["index"])]
    for path in ("/tei/meaning/similarity", "/tei/meaning"):
        assert wired.post(path, asked).json == pytest.approx(expected, abs=1e-6)


def test_tokens_have_offsets_in_bytes(wired: Live) -> None:
    (tokens,) = wired.post("/tei/meaning/tokenize", {"inputs": TEXT}).json
    words = [token for token in tokens if not token["special"]]
    assert words
    for token in words:
        assert TEXT.encode()[token["start"] : token["stop"]].decode() == token["text"]
    assert tokens[0]["text"] == "[CLS]" and tokens[0]["start"] is None
    (bare,) = wired.post("/tei/meaning/tokenize", {"inputs": TEXT, "add_special_tokens": False}).json
    assert bare == words
    ids = [token["id"] for token in wired.post("/tei/tokenize", {"inputs": "the film was warm"}).json[0]]
    assert wired.post("/tei/decode", {"ids": ids}).json == ["the film was warm"]
    assert (
        wired.post("/tei/decode", {"ids": [ids, ids], "skip_special_tokens": False})
        .json[0]
        .startswith("[CLS]")
    )
    assert wired.post("/tei/decode", {"ids": [10**6]}).status == 422
    assert wired.post("/tei/decode", {"ids": 2}).status == 422


def test_both_texts_of_a_pair_count(wired: Live) -> None:
    pairs = [["a", "b"]] * 257
    assert len(wired.post("/tei/entailment/predict", {"inputs": pairs[:256]}).json) == 256
    reply = wired.post("/tei/entailment/predict", {"inputs": pairs})
    assert reply.status == 422
    assert reply.json["error"].startswith("inputs: 514 texts; a request may have 512")
    assert wired.get("/tei/entailment/info").json["max_client_batch_size"] == 256
    assert wired.post("/tei/mood/predict", {"inputs": [["a"]] * 512}).status == 200


@pytest.mark.parametrize("threads", [None, 3])
def test_info_tells_the_threads_that_tokenise(bundles: Path, threads: int | None) -> None:
    before = set(threading.enumerate())
    with serving(bundles=[bundles / "meaning"], tokenizer_threads=threads) as live:
        started = {thread.name for thread in set(threading.enumerate()) - before}
        tokenising = [name for name in started if name.startswith("tokenize")]
        assert (
            live.get("/tei/info").json["tokenization_workers"]
            == len(tokenising)
            == (threads or len(tokenising))
        )


def test_info_tells_whether_long_texts_are_cut(wired: Live) -> None:
    long = {"inputs": "the film was warm " * 100}
    for wire, cuts in (("tei", True), ("hf", False)):
        assert wired.get(f"/{wire}/meaning/info").json["auto_truncate"] is cuts
        assert wired.post(f"/{wire}/meaning", long).status == (200 if cuts else 422)


def test_info_says_what_clients_ask_for(wired: Live) -> None:
    info = wired.get("/tei/info").json
    assert info["model_id"] == "meaning" and info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == 32 and info["max_client_batch_size"] == 512
    assert wired.get("/tei/mood/info").json["model_type"]["classifier"]["label2id"] == {
        "negative": 0,
        "positive": 1,
    }
    assert "reranker" in wired.get("/tei/cross/info").json["model_type"]


def test_health_needs_no_key_and_names_no_models(keyed: Live) -> None:
    for path in ("/tei/health", "/tei/meaning/health", "/tei/meaning/ping"):
        reply = keyed.get(path)
        assert (reply.status, reply.body) == (200, b"")
    reply = keyed.get("/tei/nope/health")
    assert reply.status == 404 and "meaning" not in reply.json["error"]
    reply = keyed.post("/tei/embed", {"inputs": "a"})
    assert (reply.status, reply.body) == (401, b"")
    assert keyed.post("/tei/embed", {"inputs": "a"}, authorization=f"Bearer {KEY}").status == 200


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": ""}, 400, "Empty"),
        ({"inputs": []}, 400, "Empty"),
        ({"inputs": ["a"] * 513}, 422, "Validation"),
        ({"inputs": [1, 2]}, 422, "Validation"),
        ({}, 422, "Validation"),
        ({"inputs": "a", "prompt_name": "query"}, 422, "Validation"),
        ({"inputs": "a", "truncation_direction": "left"}, 422, "Validation"),
        ({"inputs": "a", "truncate": 0}, 422, "Validation"),
        ({"inputs": "a", "normalize": "yes"}, 422, "Validation"),
        (b"{", 400, "Validation"),
    ],
)
def test_errors_have_teis_form(wired: Live, body: Any, status: int, kind: str) -> None:
    reply = wired.post("/tei/embed", body)
    assert reply.status == status, reply.body
    assert set(reply.json) == {"error", "error_type"} and reply.json["error_type"] == kind


def test_a_prompt_that_a_route_does_not_put_before_texts_is_refused(wired: Live) -> None:
    for path, body in (
        ("mood/predict", {"inputs": "a"}),
        ("cross/rerank", {"query": "a", "texts": ["b"]}),
        ("meaning/tokenize", {"inputs": "a"}),
    ):
        assert wired.post(f"/tei/{path}", body | {"prompt_name": None}).status == 200
        reply = wired.post(f"/tei/{path}", body | {"prompt_name": "query"})
        assert reply.status == 422 and reply.json["error"].startswith("prompt_name: "), reply.json


def test_other_errors_have_teis_form(wired: Live, failing: Callable[..., None]) -> None:
    assert wired.post("/tei/nope/embed", {"inputs": "a"}).status == 404
    assert wired.post("/tei/mood/embed", {"inputs": "a"}).json["error_type"] == "Backend"
    for path in ("embed_all", "embed_sparse"):
        assert wired.post(f"/tei/meaning/{path}", {"inputs": "a"}).status == 424
    failing(QueueFullError(100, 100, 3))
    reply = wired.post("/tei/embed", {"inputs": "a"})
    assert (reply.status, reply.json["error_type"], reply.headers["retry-after"]) == (429, "Overloaded", "3")


def test_metrics_label_requests_by_the_route(wired: Live) -> None:
    def counted() -> float:
        labels = {"endpoint": "/tei/{model}/embed", "model": "meaning", "status": "200"}
        return wired.settled_metric("bert_request_duration_seconds_count", **labels)

    before = counted()
    wired.post("/tei/meaning/embed", {"inputs": "a"})
    assert counted() == before + 1
