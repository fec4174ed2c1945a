"""Sparse vectors of /embed, of JSON lines and of TEI's /embed_sparse over a real socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.tasks.spec import TaskSpec
from tests.support.live import Live, Reply, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.tiny import SPECS, tiny_tokenizer, vocabulary, write_tiny_bundle

TEXTS = ["a warm film", "", "münchen 🙂", "angela merkel met in paris"]
ROUTED = TaskSpec("sparse", sparse_activation="log1p_relu", query_weights=True, max_tokens=16)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A model of each kind, and one with a table of queries' weights."""
    folder: Path = tmp_path_factory.mktemp("own")
    write_tiny_bundle(folder / "terms", "terms", TaskSpec("sparse", prompts={"q": "who "}, max_tokens=16), 1)
    write_tiny_bundle(folder / "routed", "routed", ROUTED, 2)
    write_tiny_bundle(folder / "meaning", "meaning", SPECS["meaning"], 3)
    write_tiny_bundle(folder / "gaps", "gaps", SPECS["gaps"], 4)
    with serving(bundles=[folder], default_models={"sparse": "terms"}, max_response_bytes=8000) as running:
        yield running


def embed(live: Live, text: object = TEXTS, **options: Any) -> list[Any]:
    reply = live.post("/embed", {"text": text, "model": "terms", **options})
    assert reply.status == 200, reply.body
    return [each["sparse"] for each in reply.json["results"]]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Neighbours in a batch change the last bits of float32."""
    assert [each["indices"] for each in found] == [each["indices"] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["values"] == pytest.approx(other["values"], abs=1e-5)


def refused(reply: Reply) -> str:
    assert reply.status == 422, reply.body
    detail: str = reply.json["detail"]
    return detail


def test_weights_are_above_zero_and_in_the_order_of_their_pieces(own: Live) -> None:
    for vector in embed(own):
        assert vector.keys() == {"indices", "values"}
        assert 1 < len(vector["indices"]) == len(vector["values"]) < len(vocabulary())
        assert (np.diff(vector["indices"]) > 0).all() and min(vector["values"]) > 0
    assert_same(embed(own, TEXTS[3]), embed(own)[3:])


def test_options_keep_some_of_the_weights(own: Live) -> None:
    (whole,) = embed(own, TEXTS[0])
    (best,) = embed(own, TEXTS[0], top_k=3, pieces=True)
    order = np.argsort(whole["values"], kind="stable")[::-1][:3]
    assert best["indices"] == sorted(whole["indices"][n] for n in order)
    assert best["pieces"] == [vocabulary()[index] for index in best["indices"]]
    bound = float(np.median(whole["values"]))
    (above,) = embed(own, TEXTS[0], threshold=bound)
    assert above["values"] == [value for value in whole["values"] if value > bound]
    assert embed(own, TEXTS[0], prompt_name="q") == embed(own, "who a warm film") != [whole]


def test_queries_of_a_table_need_no_run(own: Live) -> None:
    before = own.settled_metric("bert_batch_texts_count", model="routed")
    texts = ["paris met paris", ""]
    vectors = embed(own, texts, model="routed", side="query", pieces=True)
    pieces = {vocabulary()[index] for index in tiny_tokenizer().ids(texts[:1])[0]}
    assert set(vectors[0]["pieces"]) <= pieces == {"paris", "met"}
    assert vectors[1] == {"indices": [], "values": [], "pieces": []}
    assert own.settled_metric("bert_batch_texts_count", model="routed") == before
    assert embed(own, texts, model="routed") == embed(own, texts, model="routed", side="document")
    assert own.settled_metric("bert_batch_texts_count", model="routed") > before
    assert embed(own, texts, side="query") == embed(own, texts)  # without a table both sides are alike


def test_the_vectors_asked_for_choose_the_default_model(own: Live) -> None:
    for vectors, model in ((None, "meaning"), ("dense", "meaning"), ("sparse", "terms")):
        assert own.post("/embed", {"text": "a", "vectors": vectors}).json["model"] == model


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"vectors": "dense"}, "vectors: is 'dense'; model 'terms' gives sparse vectors"),
        ({"vectors": "sparse", "model": "meaning"}, "vectors: is 'sparse'; model 'meaning' gives dense"),
        ({"late_chunking": True}, "late_chunking: is 'true'; model 'terms' gives sparse"),
        ({"dimensions": 8}, "dimensions: is '8'; model 'terms' gives sparse"),
        (
            {"encoding_format": "base64"},
            "encoding_format: is 'base64'; model 'terms' gives sparse vectors, which have no enc",
        ),
        ({"top_k": 3, "model": "meaning"}, "top_k: is '3'; model 'meaning' gives dense"),
        ({"side": "query", "model": "meaning"}, "side: is 'query'; model 'meaning' gives dense"),
        (
            {"vectors": "sparse", "model": "gaps"},
            "model: model 'gaps' is for fill_mask, this endpoint needs one for sparse: routed, terms",
        ),
        ({"top_k": 0}, "top_k: must be a whole number of at least 1, not 0"),
        ({"threshold": -0.5}, "threshold: must be a number of at least 0, not -0.5"),
        ({"threshold": float("nan")}, "threshold: must be a number of at least 0, not nan"),
        ({"side": "passage"}, "side: must be 'query' or 'document', not 'passage'"),
        ({"text": "film " * 50}, "text: the text has 52 tokens and the model reads at most 16"),
        ({"text": ["a film"] * 60}, "text: the response would take up to "),
    ],
)
def test_what_a_model_does_not_give_is_refused(own: Live, options: dict[str, Any], reason: str) -> None:
    assert refused(own.post("/embed", {"text": "a", "model": "terms", **options})).startswith(reason)


def test_lines_have_the_same_vectors(own: Live) -> None:
    bodies = [{"text": text, "model": "terms", "top_k": 4} for text in TEXTS]
    answers = post_lines(own, "/embed", lines_of(*bodies))
    assert_same([line["results"][0]["sparse"] for line in answers], embed(own, top_k=4))


def test_tei_lists_indices_with_their_values(own: Live) -> None:
    body = {"inputs": TEXTS[::3]}
    for path in ("/tei/embed_sparse", "/tei/terms/embed_sparse", "/tei/terms"):
        reply = own.post(path, body)
        assert reply.status == 200, reply.body
        names = ({"index": "indices", "value": "values"}).items()
        found = [{theirs: [each[ours] for each in row] for ours, theirs in names} for row in reply.json]
        assert_same(found, embed(own)[::3])
    assert len(own.post("/tei/terms/embed_sparse", {"inputs": TEXTS[0]}).json) == 1
    cut = own.post("/tei/embed_sparse", {"inputs": ["film " * 50]})
    assert (cut.status, cut.headers["x-truncated"]) == (200, "0")
    assert own.get("/tei/terms/info").json["model_type"] == {"embedding": {"pooling": "splade"}}
    assert own.post("/tei/meaning/embed_sparse", body).status == 424
    assert own.post("/tei/terms/embed", body).status == 424
