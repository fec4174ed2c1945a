"""The bytes of a response are bounded before it is written: on every endpoint, compatible API and line of a stream."""

import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.http.route import TaskRequest
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.tiny import SPECS, write_tiny_bundle

MAX_BYTES = 100_000
LONG = "a" * 40_000
"""One word, which every answer and every entity holds as a whole."""
LONG_WORDS = " ".join(["a" * 2_000] * 10)
TENSOR = {"datatype": "BYTES"}


@pytest.fixture(scope="module")
def small(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a small bound, and with a classifier of 500 labels."""
    folder = tmp_path_factory.mktemp("labels")
    labels = replace(SPECS["mood"], labels=tuple(f"label {number}" for number in range(500)))
    write_tiny_bundle(folder / "labels", "labels", labels, 0)
    limits: dict[str, Any] = {"max_response_bytes": MAX_BYTES, "max_queue_tokens": 131_072}
    with serving(bundles=[bundles, folder], default_models={"classification": "mood"}, **limits) as running:
        yield running


def question(context: str, count: int) -> list[dict[str, str]]:
    return [{"question": "who", "context": context}] * count


TOO_LARGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "answers": ("/qa", {"question": ["who"] * 5, "context": LONG}, "context"),
    "alternatives": ("/qa", {"question": "who", "context": LONG_WORDS, "top_k": 20}, "context"),
    "entities of marks": ("/ner", {"text": ["a" + "\u0301" * 30_000], "aggregation": "none"}, "text"),
    "labels": ("/classify", {"text": ["a"] * 10, "model": "labels"}, "text"),
    "labels above a low score": (
        "/classify",
        {"text": ["a"] * 10, "model": "labels", "threshold": 0},
        "text",
    ),
    "labels of windows": ("/classify", {"text": ["a"] * 10, "model": "labels", "windows": "max"}, "text"),
    "pairs": ("/similarity", {"text": ["a"] * 50, "candidates": ["a"] * 50}, "text"),
    "vectors": ("/embed", {"text": ["a"] * 500}, "text"),
    "choices": ("/multiple-choice", {"prompt": ["who"] * 50, "choices": ["a" * 999, "b"]}, "prompt"),
    "candidates": ("/fill-mask", {"text": "a [MASK]" + " " * 10_000, "top_k": 20}, "text"),
    "tokens": ("/tokenize", {"text": "a " * 5_000}, "text"),
}
TOO_LARGE_OF_WIRES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "openai": (400, "/v1/embeddings", {"model": "meaning", "input": ["a"] * 500}),
    "cohere": (400, "/v2/embed", {"texts": ["a"] * 250, "embedding_types": ["float", "float16"]}),
    "tei": (422, "/tei/meaning/embed", {"inputs": ["a"] * 500}),
    "tei's tokens": (422, "/tei/meaning/tokenize", {"inputs": "a " * 5_000}),
    "tei's labels": (422, "/tei/labels/predict", {"inputs": [["a"]] * 10}),
    "tei's ranked texts": (
        422,
        "/rerank",
        {"query": "who", "texts": [LONG] * 3, "return_text": True, "truncate": True},
    ),
    "ranked documents": (
        400,
        "/rerank",
        {"query": "who", "documents": [LONG] * 3, "return_documents": True, "truncate": True},
    ),
    "hf's answers": (422, "/hf/reader", {"inputs": question(LONG, 5)}),
    "hf's vectors": (422, "/hf/meaning", {"inputs": ["a"] * 500}),
    "hf's masks": (422, "/hf/gaps", {"inputs": "a [MASK]" + " " * 10_000, "parameters": {"top_k": 20}}),
    "cloud's answers": (422, "/v1/models/reader:predict", {"instances": question(LONG, 5)}),
    "oip's answers": (
        400,
        "/v2/models/reader/infer",
        {
            "inputs": [
                TENSOR | {"name": "question", "shape": [5], "data": ["who"] * 5},
                TENSOR | {"name": "context", "shape": [5], "data": [LONG] * 5},
            ]
        },
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_response_over_the_bound_is_refused_with_both_sizes(small: Live, name: str) -> None:
    path, body, field = TOO_LARGE[name]
    reply = small.post(path, body)
    assert reply.status == 422, reply.body[:200]
    (error,) = reply.json["errors"]
    assert error["field"] == field
    assert f"one may take {MAX_BYTES} (max_response_bytes)" in error["message"]
    size = int(error["message"].split(" bytes")[0].rsplit(" ", 1)[1])
    assert size > MAX_BYTES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"text": ["a"] * 100, "model": "labels", "threshold": 0.5}),
        ("/classify", {"text": ["a"] * 100, "model": "labels", "threshold": 0, "top_k": 1}),
        ("/multiple-choice", {"prompt": ["who"] * 40, "choices": ["a" * 400] * 10, "top_k": 1}),
    ],
)
def test_who_asks_for_few_results_is_answered(small: Live, path: str, body: dict[str, Any]) -> None:
    assert small.post(path, body).status == 200


@pytest.mark.parametrize("name", TOO_LARGE_OF_WIRES)
def test_a_response_of_a_wire_over_the_bound_is_refused(small: Live, name: str) -> None:
    status, path, body = TOO_LARGE_OF_WIRES[name]
    reply = small.post(path, body)
    assert reply.status == status, reply.body[:200]
    assert f"one may take {MAX_BYTES} (max_response_bytes)" in reply.body.decode()


def test_a_line_whose_response_is_over_the_bound_gets_a_problem(small: Live) -> None:
    lines = [{"question": "who", "context": "a"}, {"question": ["who"] * 5, "context": LONG}]
    first, second = post_lines(small, "/qa", lines_of(*lines))
    assert "results" in first
    assert (second["status"], second["line"]) == (422, 2)


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_estimate_is_close_to_the_response_and_not_below_it(live: Live, name: str) -> None:
    path, body, _ = TOO_LARGE[name]
    if body.get("model") == "labels":
        body = body | {"model": "topics"}
    noted = list[int]()
    write = TaskRequest.write

    async def noting(request: TaskRequest, *others: Any) -> Any:
        written = await write(request, *others)
        noted.append(request.context.response_bytes)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskRequest, "write", noting)
        reply = live.post(path, body)
    assert reply.status == 200
    assert len(reply.body) - 200 <= noted[-1] <= 8 * len(reply.body)


def test_refusing_a_large_response_takes_little_memory(live: Live) -> None:
    """500 questions with 20 answers of up to 1.8 million characters each would be some 5 GB."""
    context = " ".join(["a" * 180_000] * 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = live.post("/qa", {"question": ["who"] * 500, "context": context, "top_k": 20})
    assert reply.status == 422
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 300 * 2**20
