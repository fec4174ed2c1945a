"""Late chunking: one run over a document, and the mean of each chunk's tokens; the reference is transformers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from model_export.cli import main
from model_export.verify.precision import EXPORTERS
from model_export.verify.texts import EncodedText, make_text
from service.bulk.predictor import Predictor
from tests.support.checkpoints import SPECS, checkpoint_and_texts, write_checkpoint
from tests.support.live import Live, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.tiny import write_tiny_bundle

CHUNKS = [
    "The parcel left our ware",
    "house on Monday. It was opened, ",
    "and nobody knows by whom",
    "... Please answer!",
]
PROMPTS = {"document": "a parcel: "}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder of bundles, and the model of `near` in transformers."""
    folder: Path = tmp_path_factory.mktemp("late")
    spec = replace(SPECS["similarity"], prompts=PROMPTS)
    model = write_checkpoint(folder / "checkpoint", spec)
    made = ["--checkpoint", str(folder / "checkpoint"), "--out", str(folder / "bundles" / "near")]
    assert main([*made, "--precision", "fp32"]) == 0
    for name, pooling in (("first", "cls"), ("both", "cls+mean")):
        write_tiny_bundle(
            folder / "bundles" / name, name, TaskSpec("similarity", pooling=pooling, max_tokens=16), 1
        )
    return folder, model


@pytest.fixture(scope="module")
def live(made: tuple[Path, Any]) -> Iterator[Live]:
    with serving(bundles=[made[0] / "bundles"], default_models={"similarity": "near"}) as running:
        yield running


def vectors(live: Live, text: object = CHUNKS, **options: Any) -> np.ndarray:
    reply = live.post("/embed", {"text": text, "late_chunking": True, **options})
    assert reply.status == 200, reply.body
    return np.array([each["embedding"] for each in reply.json["results"]])


def wanted(live: Live, model: Any, chunks: list[str], prompt: str = "") -> np.ndarray:
    """Return the means of the last states of the tokens that begin in each chunk, [CLS] and [SEP] among them."""
    (found,) = live.post("/tokenize", {"text": prompt + "".join(chunks), "model": "near"}).json["results"]
    tokens = found["tokens"]
    with torch.no_grad():
        states = (
            model(input_ids=torch.tensor([[token["id"] for token in tokens]])).last_hidden_state[0].numpy()
        )
    ends = np.cumsum([len(each) for each in chunks]) + len(prompt)
    owner = np.array([np.searchsorted(ends, token["start"], side="right") for token in tokens])
    owner[0], owner[-1] = 0, len(chunks) - 1
    means = np.array([states[owner == number].mean(axis=0) for number in range(len(chunks))])
    unit: NDArray[Any] = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit


def test_a_chunk_is_the_mean_of_its_tokens_in_the_documents_run(live: Live, made: tuple[Path, Any]) -> None:
    found = vectors(live)
    np.testing.assert_allclose(found, wanted(live, made[1], CHUNKS), atol=1e-5)
    np.testing.assert_allclose(
        vectors(live, prompt_name="document"), wanted(live, made[1], CHUNKS, PROMPTS["document"]), atol=1e-5
    )
    alone = live.post("/embed", {"text": CHUNKS}).json["results"]
    assert np.abs(found - [each["embedding"] for each in alone]).max() > 0.01


def test_one_chunk_is_the_embedding_of_its_text(live: Live) -> None:
    for text in ("".join(CHUNKS), ["".join(CHUNKS)]):
        for prompt in ("", "document"):
            plain = live.post("/embed", {"text": text, "prompt_name": prompt}).json["results"]
            assert np.array_equal(vectors(live, text, prompt_name=prompt), [plain[0]["embedding"]])


def test_usage_is_that_of_one_run(live: Live) -> None:
    document = live.post("/embed", {"text": "".join(CHUNKS)}).json["usage"]
    assert live.post("/embed", {"text": CHUNKS, "late_chunking": True}).json["usage"] == document


def test_dimensions_and_types_are_those_of_embed(live: Live) -> None:
    cut = vectors(live)[:, :8]
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(live, dimensions=8), cut, atol=1e-6)
    assert vectors(live, embedding_type="ubinary").tolist() == np.packbits(vectors(live) > 0, axis=1).tolist()


def test_jina_and_lines_give_the_same(live: Live) -> None:
    body = {"model": "near", "input": CHUNKS, "late_chunking": True}
    found = live.post("/v1/embeddings", body).json["data"]
    np.testing.assert_allclose([each["embedding"] for each in found], vectors(live), atol=1e-6)
    (line,) = post_lines(live, "/embed", lines_of({"text": CHUNKS, "late_chunking": True}))
    np.testing.assert_allclose([each["embedding"] for each in line["results"]], vectors(live), atol=1e-6)


def test_requests_beside_it_change_nothing(live: Live) -> None:
    expected = vectors(live)
    with ThreadPoolExecutor(8) as pool:
        late = [pool.submit(vectors, live) for _ in range(8)]
        plain = [pool.submit(live.post, "/embed", {"text": CHUNKS}) for _ in range(8)]
        for each in late:
            np.testing.assert_allclose(each.result(), expected, atol=1e-5)
        assert {each.result().status for each in plain} == {200}


def test_in_8_bits_neighbours_change_rounding_only(made: tuple[Path, Any]) -> None:
    checkpoint, texts = checkpoint_and_texts(made[0] / "checkpoint")
    exported = EXPORTERS["int8"](checkpoint, texts[:10])
    long = max(texts, key=len).encoding
    long.chunk_starts = np.array([0, 7, 8, len(long) // 2], np.int32)
    late = make_text(long, "similarity")
    (alone,) = exported.run([late])
    assert len(alone) == 4
    others: list[EncodedText] = [text for text in texts[:12] if text.encoding is not long]
    packed = exported.run([*others[:5], late, *others[5:]])
    np.testing.assert_allclose(packed[5], alone, atol=1e-6)
    for text, found in zip(others, packed[:5] + packed[6:], strict=True):
        np.testing.assert_allclose(exported.run([text])[0], found, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"text": ["a, ", "", "b"]}, "text[1]", "has no token of its own"),
        ({"text": ["a pa", "rcel"]}, "text[1]", "has no token of its own"),
        ({"text": [*CHUNKS * 9]}, "text", "the model reads at most 128"),
        ({"text": CHUNKS, "truncate": True}, "truncate", "has chunks without a vector"),
        ({"text": CHUNKS, "model": "first"}, "late_chunking", "it pools by cls"),
        ({"text": CHUNKS, "model": "both"}, "late_chunking", "it pools by cls+mean"),
        ({"text": CHUNKS, "dimensions": 99}, "dimensions", "is 99"),
        ({"text": CHUNKS, "late_chunking": "yes"}, "late_chunking", "must be true or false"),
    ],
)
def test_what_cannot_be_done_is_refused(live: Live, body: dict[str, Any], field: str, said: str) -> None:
    reply = live.post("/embed", {"late_chunking": True, **body})
    assert reply.status == 422
    (error,) = reply.json["errors"]
    assert error["field"] == field and said in error["message"]


def test_rows_of_a_file_are_no_chunks(made: tuple[Path, Any]) -> None:
    with pytest.raises(ConfigError, match="rows are texts of their own"):
        Predictor(made[0] / "bundles" / "near", late_chunking=True)
