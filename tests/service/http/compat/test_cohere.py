"""Cohere's official client, version 2 of its API: embeddings. Reranking is in `test_rerank`."""

from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.tasks.spec import TaskSpec
from bert.tasks.vectors.output_types import Ranges
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live, serving
from tests.support.tiny import write_tiny_bundle

TEXTS = ["a warm film", "angela merkel met in paris"]
Cohere = Callable[..., Any]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A model with ranges and prompts, and one that has neither."""
    folder: Path = tmp_path_factory.mktemp("typed")
    ranges = Ranges(*(np.full(32, value, np.float32) for value in (-0.4, 0.4, 1))).to_dict()
    prompted = TaskSpec("similarity", prompts={"query": "who "}, max_tokens=16)
    write_tiny_bundle(folder / "unit", "unit", prompted, 1, embedding_ranges=ranges)
    write_tiny_bundle(folder / "bare", "bare", TaskSpec("similarity", max_tokens=16), 1)
    with serving(bundles=[folder], default_models={"similarity": "unit"}, api_key=KEY) as running:
        yield running


@pytest.fixture
def client(typed: Live) -> Iterator[Any]:
    module = pytest.importorskip(
        "cohere", reason="the client `cohere` is not installed: `make clients` installs it"
    )
    with ExitStack() as opened:
        yield opened.enter_context(module.ClientV2(api_key=KEY, base_url=typed.url))


def own(live: Live, **options: Any) -> np.ndarray:
    results = live.post("/embed", {"text": TEXTS, **options}, authorization=f"Bearer {KEY}").json["results"]
    return np.array([each["embedding"] for each in results])


def body(**more: Any) -> dict[str, Any]:
    return {"model": "unit", "texts": TEXTS, **more}


def test_the_client_gets_every_type(client: Any, typed: Live) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = client.embed(
        model="unit", texts=TEXTS, input_type="search_document", embedding_types=kinds, output_dimension=16
    )
    assert found.texts == TEXTS and found.id and found.meta.billed_units.input_tokens == 12
    for kind in kinds[:-1]:
        got = getattr(found.embeddings, "float_" if kind == "float" else kind)
        assert np.array(got).tolist() == own(typed, embedding_type=kind, dimensions=16).tolist()
    floats = np.array([np.frombuffer(b64decode(text), "<f4") for text in found.embeddings.base64])
    np.testing.assert_allclose(floats, own(typed, dimensions=16), atol=1e-7)


def test_queries_get_the_models_prompt(client: Any, typed: Live) -> None:
    for kind, prompt in (("search_query", "query"), ("search_document", "")):
        found = client.embed(model="unit", texts=TEXTS, input_type=kind)
        np.testing.assert_allclose(found.embeddings.float_, own(typed, prompt_name=prompt), atol=1e-6)
    found = client.embed(model="bare", texts=TEXTS, input_type="classification")
    np.testing.assert_allclose(found.embeddings.float_, own(typed, model="bare"), atol=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"embedding_types": ["binary"], "output_dimension": 3}, "embedding_types: is 'binary'"),
        ({"embedding_types": ["int8"], "model": "bare"}, "has no ranges"),
        ({"embedding_types": ["int4"]}, "embedding_types.0: must be 'float', 'float16'"),
        ({"input_type": "clustering"}, "input_type: is 'clustering'"),
        ({"input_type": "image"}, "input_type"),
        ({"truncate": "START"}, "truncate"),
        ({"max_tokens": 4}, "max_tokens: cannot be honoured"),
        ({"images": ["data:"]}, "images are not read"),
        ({"texts": []}, "texts"),
        ({"texts": "a"}, "must be a list of strings"),
        ({"output_dimension": 33}, "output_dimension: is 33"),
        ({"output_dimension": 10**9}, "output_dimension: is 1000000000"),
        ({"texts": ["a film " * 20], "truncate": "NONE"}, "tokens"),
    ],
)
def test_refusals_are_a_bad_request_that_names_value_and_rule(
    typed: Live, more: dict[str, Any], said: str
) -> None:
    reply = typed.post("/v2/embed", body(**more), authorization=f"Bearer {KEY}")
    assert reply.status == 400 and said in reply.json["message"], reply.body


def test_long_texts_are_cut_and_told(typed: Live) -> None:
    reply = typed.post("/v2/embed", body(texts=["a", "a film " * 20]), authorization=f"Bearer {KEY}").json
    assert reply["meta"]["warnings"] == ["cut at the model's length: texts [1]"]
    assert set(reply["embeddings"]) == {"float"}


def test_the_clients_errors(typed: Live) -> None:
    module = pytest.importorskip("cohere", reason="the client `cohere` is not installed")
    with module.ClientV2(api_key="no", base_url=typed.url) as wrong, pytest.raises(module.UnauthorizedError):
        wrong.embed(model="unit", texts=TEXTS, input_type="search_query")
    with module.ClientV2(api_key=KEY, base_url=typed.url) as right, pytest.raises(module.NotFoundError):
        right.embed(model="nope", texts=TEXTS, input_type="search_query")
