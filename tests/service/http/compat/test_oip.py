"""The Open Inference Protocol: Triton's official HTTP client, and broken bodies, on /v2."""

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import QueueFullError
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live, Reply

TEXTS = ["a film", "münchen 🙂"]
HEADER = "inference-header-content-length"


@pytest.fixture(scope="module")
def triton() -> Any:
    return pytest.importorskip(
        "tritonclient.http", reason="tritonclient[http] is not installed: `make clients` installs it"
    )


@pytest.fixture
def client(triton: Any, wired: Live) -> Iterator[Any]:
    with triton.InferenceServerClient(wired.url.removeprefix("http://")) as opened:
        yield opened


def texts_of(triton: Any, name: str, texts: list[str], shape: list[int] | None = None, **how: bool) -> Any:
    tensor = triton.InferInput(name, shape or [len(texts)], "BYTES")
    array = np.array([text.encode() for text in texts], dtype=object).reshape(shape or [len(texts)])
    tensor.set_data_from_numpy(array, **how)
    return tensor


def test_the_server_and_its_models_are_described(client: Any, wired: Live) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("meaning")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_repository"]
    found = client.get_model_metadata("mood")
    assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert {"name": "scores", "datatype": "FP32", "shape": [-1, 2]} in found["outputs"]
    assert client.get_model_metadata("meaning", "1")["versions"] == ["1"]
    assert wired.get("/v2/health/live").json == {"live": True}
    assert wired.get("/v2/health/ready").json == {"ready": True}
    assert "meaning" in wired.get("/v2/models").json["models"]


@pytest.mark.parametrize("version", ["99", "0", "1.0", "latest"])
def test_another_version_than_the_loaded_one_is_unknown_everywhere(wired: Live, version: str) -> None:
    path = f"/v2/models/meaning/versions/{version}"
    asked = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    replies = [wired.get(path), wired.get(f"{path}/ready"), wired.post(f"{path}/infer", asked)]
    assert [reply.status for reply in replies] == [404] * 3
    assert all(f"meaning/{version}" in reply.json["error"] for reply in replies)
    assert wired.get("/v2/models/meaning/versions/1/ready").json == {"name": "meaning", "ready": True}


@pytest.mark.parametrize("binary", [True, False])
def test_embeddings_come_in_binary_or_json(client: Any, triton: Any, wired: Live, binary: bool) -> None:
    own = [each["embedding"] for each in wired.post("/embed", {"text": TEXTS}).json["results"]]
    found = client.infer("meaning", [texts_of(triton, "text", TEXTS, binary_data=binary)], request_id="7")
    np.testing.assert_allclose(found.as_numpy("embedding"), own, atol=1e-7)
    assert found.get_response()["id"] == "7" and found.get_response()["model_name"] == "meaning"
    asked = [triton.InferRequestedOutput("embedding", binary_data=binary)]
    found = client.infer("meaning", [texts_of(triton, "text", TEXTS, [2, 1])], outputs=asked)
    np.testing.assert_allclose(found.as_numpy("embedding"), own, atol=1e-7)


def test_classification(client: Any, triton: Any, wired: Live) -> None:
    own = wired.post("/classify", {"text": TEXTS}).json["results"]
    found = client.infer("mood", [texts_of(triton, "text", TEXTS)])
    assert found.as_numpy("label").tolist() == [each["label"] for each in own]
    np.testing.assert_allclose(found.as_numpy("score"), [each["score"] for each in own], atol=1e-6)
    labels = json.loads(found.get_output("scores")["parameters"]["labels"])
    assert labels == ["negative", "positive"]
    np.testing.assert_allclose(found.as_numpy("scores").sum(axis=1), 1, atol=1e-5)
    pair = [texts_of(triton, "text", ["a"]), texts_of(triton, "text_pair", ["b"])]
    own = wired.post("/classify", {"text": "a", "text_pair": "b", "model": "entailment"}).json["results"]
    assert client.infer("entailment", pair).as_numpy("label").tolist() == [own[0]["label"]]


def test_answers_entities_and_masks(client: Any, triton: Any, wired: Live) -> None:
    asked = {"question": "where was it", "context": "the film was in munich"}
    own = wired.post("/qa", asked).json["results"][0]
    found = client.infer("reader", [texts_of(triton, name, [text]) for name, text in asked.items()])
    assert found.as_numpy("answer").tolist() == [own["answer"] or ""]
    assert found.as_numpy("start").tolist() == [-1 if own["start"] is None else own["start"]]
    text = "Angela Merkel met in Munich"
    (entities,) = client.infer("names", [texts_of(triton, "text", [text])]).as_numpy("entities")
    assert json.loads(entities) == wired.post("/ner", {"text": text}).json["results"][0]["entities"]
    (masks,) = client.infer(
        "gaps", [texts_of(triton, "text", ["[MASK] film"])], parameters={"top_k": 2}
    ).as_numpy("masks")
    own = wired.post("/fill-mask", {"text": "[MASK] film", "top_k": 2}).json["results"][0]
    assert json.loads(masks) == own["masks"]


def test_errors_are_the_clients_with_the_services_text(
    client: Any, triton: Any, keyed: Live, failing: Callable[..., None]
) -> None:
    from tritonclient.utils import InferenceServerException

    def refused(message: str, model: str, *inputs: Any, **options: Any) -> None:
        with pytest.raises(InferenceServerException, match=message):
            client.infer(model, list(inputs), **options)

    text = texts_of(triton, "text", ["a"])
    refused(r"\[404\] there is no model 'nope'", "nope", text)
    refused(r"\[400\] .*reads text and text_pair", "entailment", text)
    refused(r"\[400\] .*reads text$", "meaning", texts_of(triton, "words", ["a"]))
    refused(r"\[400\] .*'vector' is none", "meaning", text, outputs=[triton.InferRequestedOutput("vector")])
    refused(r"\[400\] .*402 tokens", "meaning", texts_of(triton, "text", ["the film was warm " * 100]))
    numbers = triton.InferInput("text", [1], "FP32")
    numbers.set_data_from_numpy(np.zeros(1, np.float32))
    refused(r"\[400\] text: must be texts", "meaning", numbers)
    failing(QueueFullError(100, 100, 2))
    refused(r"\[429\].*are waiting", "meaning", text)
    with triton.InferenceServerClient(keyed.url.removeprefix("http://")) as other:
        assert other.is_server_ready() and other.is_model_ready("meaning")  # probes send no key
        with pytest.raises(InferenceServerException, match=r"\[401\] send the key"):
            other.get_model_metadata("meaning")
        assert (
            other.get_model_metadata("meaning", headers={"Authorization": f"Bearer {KEY}"})["name"]
            == "meaning"
        )


def test_gzip_is_read(client: Any, triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    text = texts_of(triton, "text", TEXTS)
    found = client.infer("meaning", [text], request_compression_algorithm="gzip")
    assert found.as_numpy("embedding").shape == (2, 32)
    with pytest.raises(InferenceServerException, match="no other encoding"):
        client.infer("meaning", [text], request_compression_algorithm="deflate")


def infer(live: Live, body: bytes, **headers: str) -> Reply:
    return live.post("/v2/models/meaning/infer", body, **headers)


def binary_body(texts: list[bytes], size: int | None = None, count: int | None = None) -> tuple[bytes, int]:
    """Return a body with a binary tensor, and the length of its JSON."""
    tail = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    parameters = {"binary_data_size": len(tail) if size is None else size}
    shape = [len(texts) if count is None else count]
    head = json.dumps(
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, "parameters": parameters}]}
    ).encode()
    return head + tail, len(head)


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        ("mood", {"top_k": 1}, "top_k: is not an option of classification, which 'mood' is for"),
        ("meaning", {"top_k": 1}, "top_k: is not an option of similarity"),
        ("names", {"truncate": True}, "truncate: is not an option of ner"),
        ("names", {"prompt_name": "query"}, "prompt_name: is not an option of ner"),
        ("gaps", {"truncate": True}, "truncate: is not an option of fill_mask"),
        ("mood", {"priority": 1}, "priority: cannot be honoured"),
        ("mood", {"timeout": 1000}, "timeout: cannot be honoured: send the header X-Timeout-Ms"),
        ("mood", {"sequence_id": 7}, "sequence_id: cannot be honoured"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused(
    wired: Live, model: str, parameters: dict[str, object], message: str
) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["[MASK]"]}
    reply = wired.post(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": parameters})
    assert reply.status == 400 and reply.json["error"].startswith(message), reply.json
    without = {"truncate": False, "priority": 0, "sequence_id": 0, "unknown": 1}
    reply = wired.post(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": without})
    assert reply.status == 200, reply.json


@pytest.mark.parametrize("name", ["classification", "shared_memory_region"])
def test_an_output_in_another_form_is_refused(wired: Live, name: str) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    asked = {"inputs": [tensor], "outputs": [{"name": "label", "parameters": {name: 1}}]}
    reply = wired.post("/v2/models/mood/infer", asked)
    assert reply.status == 400 and f"label.{name}" in reply.json["error"], reply.json


def test_no_content_type_and_unknown_fields_are_accepted(wired: Live) -> None:
    body, head = binary_body([b"a film"])
    reply = infer(wired, body, **{HEADER: str(head)}, content_type="application/octet-stream")
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    asked = {
        "model_name": "meaning",
        "id": "x",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
    }
    asked["inputs"][0]["data"] = [["a film"]]  # type: ignore[index]
    assert infer(wired, json.dumps(asked).encode()).json["id"] == "x"


@pytest.mark.parametrize(
    ("texts", "size", "count", "cut"),
    [
        ([b"a"], 100, None, 0),
        ([b"a"], -1, None, 0),
        ([b"a"], 3, None, 0),
        ([b"a", b"b"], None, 3, 0),
        ([b"a"], None, None, 2),
        ([b"\xff"], None, None, 0),
        ([b"a"], 0, 0, 0),
    ],
)
def test_broken_tensors_are_refused(
    wired: Live, texts: list[bytes], size: int | None, count: int | None, cut: int
) -> None:
    body, head = binary_body(texts, size, count)
    reply = infer(wired, body[: len(body) - cut], **{HEADER: str(head)})
    assert reply.status == 400, reply.body
    assert set(reply.json) == {"error"} and reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("length", ["-1", "x", "99999", "", "1" * 40])
def test_a_wrong_length_of_the_json_is_refused(wired: Live, length: str) -> None:
    body, _ = binary_body([b"a"])
    reply = infer(wired, body, **{HEADER: length})
    assert reply.status == 400 and HEADER in reply.json["error"]


@given(tail=st.binary(max_size=60), head=st.integers(0, 200), count=st.integers(-2, 600))
def test_no_bytes_break_the_service(wired: Live, tail: bytes, head: int, count: int) -> None:
    body, size = binary_body([b"film"], len(tail), count)
    body = body[:size] + tail
    for length in (size, min(head, len(body))):
        assert infer(wired, body, **{HEADER: str(length)}).status in (200, 400, 413)


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a film"]}
FLAG = "must be true or false, not a string"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"inputs": [TENSOR, TENSOR | {"data": ["dull"]}]}, "inputs: has 'text' more than once"),
        ({"inputs": [TENSOR | {"shape": ["1"]}]}, "inputs.0.shape.0: must be a whole number"),
        ({"inputs": [TENSOR | {"shape": [True]}]}, "inputs.0.shape.0: must be a whole number"),
        (
            {"inputs": [TENSOR], "parameters": {"binary_data_output": "false"}},
            f"binary_data_output: {FLAG}",
        ),
        (
            {"inputs": [TENSOR], "outputs": [{"name": "label", "parameters": {"binary_data": "false"}}]},
            f"label.binary_data: {FLAG}",
        ),
    ],
)
def test_two_inputs_of_one_name_and_wrong_types_are_refused(
    wired: Live, asked: dict[str, object], message: str
) -> None:
    reply = wired.post("/v2/models/mood/infer", asked)
    assert reply.status == 400 and reply.json["error"].startswith(message), reply.json


def test_a_probe_without_a_key_does_not_learn_the_version(keyed: Live) -> None:
    reply = keyed.get("/v2/models/meaning/versions/99/ready")
    assert (reply.status, reply.json["error"]) == (404, "there is no model 'meaning/99'")
