"""Options of /embed and /similarity over a real socket: dimensions, base64 and NumPy files."""

import io
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.tasks.spec import DenseLayer, TaskSpec
from service.http.route import MAX_LISTED
from tests.support.live import Live, Reply, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.tiny import SPECS, write_tiny_bundle

TEXTS = ["a warm film", "", "münchen 🙂", "angela merkel met in paris"]
SIZE = 32
NAME = "bedeutung für 100%"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Vectors that are not of length 1, and a model whose name fits no header."""
    folder: Path = tmp_path_factory.mktemp("own")
    spec = TaskSpec("similarity", dense=(DenseLayer(24),), normalize=False, similarity="dot", max_tokens=16)
    write_tiny_bundle(folder / "free", "free", spec, 1)
    write_tiny_bundle(folder / "named", NAME, replace(SPECS["meaning"], max_tokens=16), 2)
    with serving(
        bundles=[folder], max_texts_per_request=2000, default_models={"similarity": "free"}
    ) as running:
        yield running


def embed(live: Live, text: object = TEXTS, **options: Any) -> Reply:
    reply = live.post("/embed", {"text": text, **options})
    assert reply.status == 200, reply.body
    return reply


def vectors(live: Live, text: object = TEXTS, **options: Any) -> np.ndarray:
    return np.array([each["embedding"] for each in embed(live, text, **options).json["results"]])


def unpacked(reply: Reply) -> np.ndarray:
    assert reply.headers["content-type"] == "application/x-npy"
    found: np.ndarray = np.load(io.BytesIO(reply.body), allow_pickle=False)
    assert found.dtype == np.dtype("<f4") and found.flags.c_contiguous
    return found


def test_dimensions_are_the_first_numbers_of_length_one(live: Live) -> None:
    whole = vectors(live)
    for dimensions in (1, 5, SIZE - 1):
        first = whole[:, :dimensions]
        expected = first / np.linalg.norm(first, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors(live, dimensions=dimensions), expected, atol=1e-6)
    assert embed(live, dimensions=SIZE).body == embed(live).body == embed(live, dimensions=None).body


def test_vectors_of_any_length_are_cut_and_keep_their_numbers(own: Live) -> None:
    assert np.array_equal(vectors(own, dimensions=7), vectors(own)[:, :7])
    assert vectors(own, dimensions=24).shape == (4, 24)


def test_similarity_compares_by_the_first_numbers(live: Live, own: Live) -> None:
    for service, compare in ((live, True), (own, False)):
        first = vectors(service, dimensions=6)
        body = {"text": TEXTS[0], "candidates": TEXTS, "dimensions": 6}
        results = service.post("/similarity", body).json["results"]
        found = {each["index"]: each["score"] for each in results}
        expected = first @ first[0]
        assert [found[n] for n in range(4)] == pytest.approx(expected.tolist(), abs=1e-5)
        assert compare == (found[0] == pytest.approx(1, abs=1e-5))


@pytest.mark.parametrize("path", ["/embed", "/similarity"])
def test_other_dimensions_are_refused_with_both_numbers(live: Live, path: str) -> None:
    body = {"text": "a", "candidates": "b"} if path == "/similarity" else {"text": "a"}
    wrong: list[Any] = [SIZE + 1, 10**18, 0, -1, True, "8", 8.5, float("nan"), float("inf"), {}]
    for value in wrong:
        reply = live.post(path, body | {"dimensions": value})
        assert reply.status == 422, value
        (error,) = reply.json["errors"]
        assert error["field"] == "dimensions"
        if type(value) is int and value > SIZE:
            assert f"is {value}" in error["message"] and "gives 32" in error["message"]
        elif isinstance(value, int | float):
            assert f"at least 1, not {str(value).lower()}" in error["message"]


def test_a_whole_number_may_be_written_as_a_float(live: Live) -> None:
    assert embed(live, dimensions=5.0).body == embed(live, dimensions=5).body
    ranked = {"text": TEXTS[0], "candidates": TEXTS, "top_k": 2.0, "dimensions": 6.0}
    assert len(live.post("/similarity", ranked).json["results"]) == 2
    assert len(live.post("/rerank", {"query": "a", "candidates": TEXTS, "top_k": 1e300}).json["results"]) == 4


def test_base64_holds_little_endian_float32(live: Live) -> None:
    for options in ({}, {"dimensions": 3}):
        plain = embed(live, **options).json
        packed = embed(live, encoding_format="base64", **options).json
        for one, other in zip(plain["results"], packed["results"], strict=True):
            numbers = np.frombuffer(b64decode(other.pop("embedding"), validate=True), "<f4")
            assert np.array_equal(numbers, np.array(one.pop("embedding"), np.float32))
            assert one == other
        assert plain["usage"] == packed["usage"]
    assert embed(live, encoding_format="float").body == embed(live).body


def test_binary_is_a_numpy_file(live: Live) -> None:
    for options in ({}, {"dimensions": 3}):
        reply = embed(live, encoding_format="binary", **options)
        assert np.array_equal(unpacked(reply), vectors(live, **options).astype(np.float32))
        assert reply.headers["x-model"] == "meaning"
        assert int(reply.headers["x-usage-tokens"]) == embed(live, **options).json["usage"]["tokens"]
        assert int(reply.headers["content-length"]) == len(reply.body)
        assert {"x-request-id", "server-timing"} <= set(reply.headers)
        assert "x-truncated" not in reply.headers
    assert unpacked(embed(live, "a", encoding_format="binary")).shape == (1, SIZE)
    many = [f"film {number}" for number in range(200)]
    together = unpacked(embed(live, many, encoding_format="binary"))
    np.testing.assert_allclose(together, vectors(live, many), atol=1e-5)


def test_cut_texts_are_told_in_a_header_of_bounded_length(own: Live) -> None:
    long = "the film was warm " * 10
    reply = embed(own, ["a", long, "b", long], encoding_format="binary", truncate=True)
    assert (reply.headers["x-truncated"], reply.headers["x-truncated-count"]) == ("1,3", "2")
    reply = embed(own, [long] * 1500, encoding_format="binary", truncate=True)
    assert reply.headers["x-truncated"].split(",") == [str(number) for number in range(MAX_LISTED)]
    assert reply.headers["x-truncated-count"] == "1500"
    assert unpacked(reply).shape == (1500, 24)


def test_a_name_that_fits_no_header_is_percent_encoded(own: Live) -> None:
    reply = embed(own, model=NAME, encoding_format="binary")
    assert reply.headers["x-model"] == "bedeutung%20f%C3%BCr%20100%25"


def test_errors_stay_problems(live: Live) -> None:
    for body, status in (
        ({"text": []}, 422),
        ({"text": "a", "dimensions": 99}, 422),
        ({"text": "a " * 40}, 422),
        ({"text": "a", "model": "nope"}, 404),
    ):
        reply = live.post("/embed", body | {"encoding_format": "binary"})
        assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    formats: list[Any] = ["int8", "", 1, True, None, {}]
    for value in formats:
        reply = live.post("/embed", {"text": "a", "encoding_format": value})
        assert reply.status == 422
        assert "'float', 'base64' or 'binary'" in reply.json["errors"][0]["message"]


def test_a_line_of_many_has_no_binary_response(live: Live) -> None:
    lines = [{"text": "a", "encoding_format": each} for each in ("binary", "base64", "float")]
    found = post_lines(live, "/embed", lines_of(*lines))
    assert found[0]["errors"][0]["field"] == "encoding_format"
    assert found[1]["results"] == embed(live, "a", encoding_format="base64").json["results"]
    assert found[2]["results"] == embed(live, "a").json["results"]


def test_models_tell_the_size_of_their_vectors(live: Live, own: Live) -> None:
    sizes = {model["name"]: model["embedding_size"] for model in live.get("/models").json["models"]}
    assert sizes.pop("meaning") == SIZE
    assert set(sizes.values()) == {None}
    assert {model["embedding_size"] for model in own.get("/models").json["models"]} == {24, SIZE}
