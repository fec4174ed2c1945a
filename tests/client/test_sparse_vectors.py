"""Sparse vectors by both clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.tasks.spec import TaskSpec
from bert_client import InvalidRequestError, InvalidResponseError, SparseVector
from tests.client.conftest import MakeClient
from tests.support.live import Live, serving
from tests.support.tiny import write_tiny_bundle
from tests.support.token_vectors import write_tokens_bundle

TEXTS = ["a warm film", "", "angela met merkel in munich"]


@pytest.fixture(scope="module")
def terms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("terms")
    spec = TaskSpec("sparse", query_weights=True, max_tokens=16)
    write_tiny_bundle(folder / "terms", "terms", spec, 1)
    write_tokens_bundle(folder / "tokens")
    with serving(bundles=[folder]) as running:
        yield running


def test_vectors_are_those_of_the_wire(make: MakeClient, terms: Live) -> None:
    client = make(terms.url)
    options: dict[str, Any]
    for options in ({}, {"side": "query"}, {"top_k": 2, "pieces": True}, {"threshold": 0.7}):
        results = terms.post("/embed", {"text": TEXTS, **options}).json["results"]
        found = client.embed_sparse(TEXTS, **options)
        assert [list(each.indices) for each in found] == [each["sparse"]["indices"] for each in results]
        for one, each in zip(found, results, strict=True):
            assert list(one.values) == pytest.approx(each["sparse"]["values"], abs=1e-5)
            assert list(one.pieces) == each["sparse"].get("pieces", [])
        assert [each.indices for each in client.stream("embed_sparse", iter(TEXTS), **options)] == [
            each.indices for each in found
        ]


def test_a_string_has_one_vector(make: MakeClient, terms: Live) -> None:
    vector = make(terms.url).embed_sparse("film " * 50, truncate=True, top_k=1)
    assert isinstance(vector, SparseVector) and vector.truncated
    assert vector.to_dict() == {
        "indices": list(vector.indices),
        "values": list(vector.values),
        "pieces": [],
        "truncated": True,
    }


def test_what_the_service_refuses_is_raised(make: MakeClient, terms: Live) -> None:
    with pytest.raises(InvalidRequestError, match="top_k: must be a whole number of at least 1, not 0"):
        make(terms.url).embed_sparse("a", top_k=0)


def test_embed_says_which_vectors_a_model_gives(make: MakeClient, terms: Live) -> None:
    with pytest.raises(InvalidRequestError, match="model 'terms' gives sparse vectors"):
        make(terms.url).embed("a", model="terms")
    with pytest.raises(InvalidResponseError, match="the model gives other vectors than dense ones"):
        make(terms.url).embed("a", model="tokens")
