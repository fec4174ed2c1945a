"""Models that are not like most: with prompts, vectors of any length, or nothing that says whether they read pairs."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.tasks.spec import DenseLayer, TaskSpec
from tests.service.http.compat.conftest import CROSS
from tests.support.live import Live, serving
from tests.support.tiny import SPECS, write_tiny_bundle

ASKS = TaskSpec(
    "similarity",
    dense=(DenseLayer(24),),
    normalize=False,
    prompts={"query": "who is ", "passage": "in "},
    default_prompt_name="query",
    max_tokens=16,
)


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("odd")
    write_tiny_bundle(folder / "asks", "asks", ASKS, 1)
    write_tiny_bundle(folder / "either", "either", replace(CROSS, pair=None), 2)
    write_tiny_bundle(folder / "mood", "mood", replace(SPECS["mood"], pair=None), 3)
    return folder


@pytest.fixture(scope="module")
def odd(odd_folder: Path) -> Iterator[Live]:
    with serving(bundles=[odd_folder], default_models={"classification": "mood"}) as running:
        yield running


def own(live: Live, text: str, prompt: str | None = None) -> list[float]:
    reply = live.post("/embed", {"text": text, "prompt_name": prompt})
    return list(reply.json["results"][0]["embedding"])


def test_prompts_are_those_of_embed_on_every_wire(odd: Live) -> None:
    by_default, named = own(odd, "merkel"), own(odd, "merkel", "passage")
    assert not np.allclose(by_default, named)
    for more, expected in (({}, by_default), ({"prompt_name": "passage"}, named)):
        openai = odd.post("/v1/embeddings", {"model": "asks", "input": "merkel", **more}).json
        np.testing.assert_allclose(openai["data"][0]["embedding"], expected, atol=1e-6)
        raw = {"inputs": "merkel", "normalize": False, **more}
        for path in ("/tei/asks/embed", "/hf/asks"):
            np.testing.assert_allclose(odd.post(path, raw).json, [expected], atol=1e-6)
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["merkel"]}
        oip = odd.post("/v2/models/asks/infer", {"inputs": [tensor], "parameters": more}).json["outputs"][0]
        assert oip["shape"] == [1, 24]
        np.testing.assert_allclose(oip["data"], expected, atol=1e-6)
        asked = {"instances": ["merkel"], "parameters": more}
        found = odd.post("/v1/models/asks:predict", asked).json["predictions"][0]["embedding"]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_teis_tokens_are_those_of_the_text_with_its_prompt(odd: Live) -> None:
    plain, prompted = (
        odd.post("/tei/asks/tokenize", {"inputs": "merkel", "prompt_name": name}).json[0]
        for name in (None, "passage")
    )
    assert [token["text"] for token in plain] == ["[CLS]", "merkel", "[SEP]"]
    assert [token["text"] for token in prompted] == ["[CLS]", "in", "merkel", "[SEP]"]


def test_teis_vectors_have_length_one_unless_asked_otherwise(odd: Live) -> None:
    assert abs(np.linalg.norm(own(odd, "merkel")) - 1) > 0.1
    (vector,) = odd.post("/tei/asks/embed", {"inputs": "merkel"}).json
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert odd.get("/v2/models/asks").json["outputs"][0]["shape"] == [-1, 24]


def test_queries_and_documents_get_their_prompts(odd: Live) -> None:
    found = odd.post("/rerank", {"query": "merkel", "candidates": ["munich", "paris"]}).json
    assert found["model"] == "asks"  # nothing says that "either" reads pairs, so it has to be named
    query = np.array(own(odd, "merkel", "query"))
    for each in found["results"]:
        other = np.array(own(odd, ["munich", "paris"][each["index"]], "passage"))
        cosine = query @ other / np.linalg.norm(query) / np.linalg.norm(other)
        assert each["score"] == pytest.approx(cosine, abs=1e-5)


def test_a_model_that_may_read_pairs_is_asked_for_either(odd: Live) -> None:
    assert odd.post("/rerank", {"query": "a", "candidates": ["b"], "model": "either"}).status == 200
    assert odd.post("/tei/either/rerank", {"query": "a", "texts": ["b"]}).status == 200
    for inputs in ("a", ["a", "b"]):
        assert odd.post("/tei/mood/predict", {"inputs": inputs}).status == 200
    for one in ("a", {"text": "a"}, {"text": "a", "text_pair": "b"}):
        assert odd.post("/hf/mood", {"inputs": one}).status == 200
        assert odd.post("/v1/models/mood:predict", {"instances": [one]}).status == 200


def test_teis_rerank_asks_the_default_classifier_that_it_checked(odd: Live, odd_folder: Path) -> None:
    asked = {"query": "merkel", "texts": ["munich", "paris"]}
    assert odd.post("/tei/rerank", asked).status == 424  # "mood", the default, has two labels
    defaults = {"classification": "either", "similarity": "asks"}
    with serving(bundles=[odd_folder], default_models=defaults) as other:
        named = other.post("/tei/either/rerank", asked).json
        assert other.post("/tei/rerank", asked).json == named
        labels = {"endpoint": "/tei/rerank", "model": "either"}
        assert other.settled_metric("bert_request_duration_seconds_count", **labels) == 1


def test_a_model_called_similarity_has_the_address_tei_similarity(odd: Live, tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "meaning", "meaning", SPECS["meaning"], 4)
    write_tiny_bundle(tmp_path / "similarity", "similarity", SPECS["meaning"], 5)
    compared = {"inputs": {"source_sentence": "a", "sentences": ["munich", "paris"]}}
    assert odd.post("/tei/similarity", compared).json == odd.post("/tei/asks", compared).json
    with serving(bundles=[tmp_path], default_models={"similarity": "meaning"}) as live:
        for model in ("meaning", "similarity"):
            embedded = live.post(f"/tei/{model}/embed", {"inputs": "merkel"})
            assert live.post(f"/tei/{model}", {"inputs": "merkel"}).json == embedded.json
            found = live.post(f"/tei/{model}/similarity", compared)
            assert live.post(f"/tei/{model}", compared).json == found.json


def test_a_model_called_similarity_that_is_left_out_is_not_replaced_by_another(
    odd_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(odd_folder / "asks", tmp_path / "asks")
    write_tiny_bundle(tmp_path / "similarity", "similarity", ASKS, 4)
    (tmp_path / "similarity" / "model.onnx").write_bytes(b"no graph")
    compared = {"inputs": {"source_sentence": "a", "sentences": ["munich"]}}
    with serving(bundles=[tmp_path]) as live:
        assert [live.post("/tei/similarity", body).status for body in (compared, {"inputs": "a"})] == [
            503,
            503,
        ]
