"""The types of embeddings' numbers over a real socket: /embed, JSON lines, OpenAI's and Jina's form, bulk prediction."""

import io
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors.output_types import CODED, DTYPES, PACKED, Ranges, converted
from bert.tasks.vectors.similarity import normalize
from bert_client import Client
from service.bulk.predictor import Predictor
from tests.support.bulk import read_rows, run, write_rows
from tests.support.live import Live, Reply, serving
from tests.support.ndjson import lines_of, post_lines
from tests.support.tiny import write_tiny_bundle

TEXTS = ["a warm film", "angela merkel met in paris", "who is it", "not"]
SIZE = 32
LOW, HIGH = np.full(SIZE, -0.4, np.float32), np.full(SIZE, 0.4, np.float32)
RANGES = Ranges(LOW, HIGH, np.linspace(0.1, 1, SIZE))
PROMPTS = {"query": "who ", "document": "a film "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles with ranges of vectors of length 1 and of any length, and one without ranges."""
    made: Path = tmp_path_factory.mktemp("typed")
    ranges = RANGES.to_dict()
    unit, free = (
        TaskSpec("similarity", prompts=PROMPTS, max_tokens=16),
        TaskSpec("similarity", normalize=False),
    )
    write_tiny_bundle(made / "unit", "unit", unit, 1, embedding_ranges=ranges)
    write_tiny_bundle(
        made / "free", "free", free, 1, positions=512, embedding_ranges={**ranges, "lengths": []}
    )
    write_tiny_bundle(made / "bare", "bare", TaskSpec("similarity", max_tokens=16), 1)
    return made


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with serving(bundles=[folder], default_models={"similarity": "unit"}) as running:
        yield running


def ask(live: Live, **options: Any) -> Reply:
    reply = live.post("/embed", {"text": TEXTS, **options})
    assert reply.status == 200, reply.body
    return reply


def listed(reply: Reply) -> np.ndarray:
    return np.array([each["embedding"] for each in reply.json["results"]])


def file_of(reply: Reply) -> np.ndarray:
    found: np.ndarray = np.load(io.BytesIO(reply.body), allow_pickle=False)
    return found


def refusal(live: Live, body: dict[str, Any], path: str = "/embed") -> str:
    reply = live.post(path, body)
    assert reply.status in (400, 422), reply.body
    return str(reply.json)


@pytest.mark.parametrize("model", ["unit", "free"])
@pytest.mark.parametrize("dimensions", [None, 8, 13])
def test_each_type_is_made_of_the_vector_that_was_cut(live: Live, model: str, dimensions: int | None) -> None:
    cut = {"model": model} | ({} if dimensions is None else {"dimensions": dimensions})
    floats = file_of(ask(live, encoding_format="binary", **cut))
    ranges = RANGES if model == "unit" else Ranges(RANGES.low, RANGES.high, RANGES.low[:0])
    for kind, dtype in DTYPES.items():
        expected = converted(floats, kind, ranges)
        file = file_of(ask(live, encoding_format="binary", embedding_type=kind, **cut))
        assert file.dtype == np.dtype(dtype) and np.array_equal(file, expected)
        assert np.array_equal(listed(ask(live, embedding_type=kind, **cut)).astype(dtype), expected)
        packed = ask(live, encoding_format="base64", embedding_type=kind, **cut).json["results"]
        assert [b64decode(each["embedding"]) for each in packed] == [row.tobytes() for row in expected]
        if kind in PACKED:
            assert file.shape == (len(TEXTS), -(-(dimensions or SIZE) // 8))


def test_codes_use_their_range_after_a_cut(live: Live) -> None:
    codes = listed(ask(live, embedding_type="uint8", dimensions=8))
    numbers = listed(ask(live, dimensions=8))
    low, high = RANGES.of_first(8)
    within = (numbers > low) & (numbers < high)
    assert within.any() and np.abs((codes + 0.5) * (high - low) / 255 + low - numbers)[within].max() < 5e-3


def test_lines_have_their_own_types(live: Live) -> None:
    lines = [{"text": "a", "embedding_type": kind} for kind in DTYPES]
    found = post_lines(live, "/embed", lines_of(*lines))
    for kind, line in zip(DTYPES, found, strict=True):
        (one,) = live.post("/embed", {"text": "a", "embedding_type": kind}).json["results"]
        assert line["results"] == [one]
    refused = post_lines(live, "/embed", lines_of({"text": "a", "embedding_type": "int8", "model": "bare"}))
    assert refused[0]["errors"][0]["field"] == "embedding_type"


def test_what_makes_no_sense_is_refused_with_value_and_rule(live: Live) -> None:
    for kind in PACKED:
        said = refusal(live, {"text": "a", "embedding_type": kind, "dimensions": 3})
        assert f"is '{kind}'" in said and "has 3" in said and "at least 8" in said
    for kind in CODED:
        said = refusal(live, {"text": "a", "embedding_type": kind, "model": "bare"})
        assert f"is '{kind}'" in said and "no ranges" in said and "without --parity-texts few" in said
    for wrong in ("int4", "base64", None, 8):
        assert "embedding_type" in refusal(live, {"text": "a", "embedding_type": wrong})
    assert "dimensions" in refusal(live, {"text": "a", "embedding_type": "binary", "dimensions": 99})
    assert listed(ask(live, embedding_type="ubinary", model="bare")).shape == (len(TEXTS), 4)


def test_models_state_their_ranges(live: Live) -> None:
    found = {each["name"]: each["embedding_ranges"] for each in live.get("/models").json["models"]}
    assert found == {"unit": RANGES.to_dict(), "free": {**RANGES.to_dict(), "lengths": []}, "bare": None}


def openai_form(live: Live, **options: Any) -> list[Any]:
    reply = live.post("/v1/embeddings", {"model": "unit", "input": TEXTS, **options})
    assert reply.status == 200, reply.body
    return [each["embedding"] for each in reply.json["data"]]


def test_jinas_types(live: Live) -> None:
    for kind in DTYPES:
        expected = ask(live, embedding_type=kind, dimensions=16).json["results"]
        for form in ("float", "base64"):  # which OpenAI's client sends, and reads as float32
            found = openai_form(live, embedding_type=kind, dimensions=16, encoding_format=form)
            assert found == [each["embedding"] for each in expected]
    assert openai_form(live, embedding_type="base64") == openai_form(live, encoding_format="base64")
    said = refusal(
        live, {"model": "unit", "input": "a", "embedding_type": "binary", "dimensions": 7}, "/v1/embeddings"
    )
    assert "embedding_type" in said and "has 7" in said
    said = refusal(live, {"model": "unit", "input": "a", "embedding_type": ["int8"]}, "/v1/embeddings")
    assert "embedding_type: must be 'float', 'float16'" in said and "'base64', not a list" in said


@pytest.mark.parametrize(
    ("task", "prompt"),
    [("retrieval.query", "query"), ("retrieval.passage", "document"), ("query", "query"), (None, "")],
)
def test_jinas_task_is_a_prompt(live: Live, task: str | None, prompt: str) -> None:
    expected = listed(ask(live, prompt_name=prompt))
    np.testing.assert_allclose(openai_form(live, task=task), expected, atol=1e-6)
    np.testing.assert_allclose(openai_form(live, task="query", prompt_name=prompt), expected, atol=1e-6)


def test_jinas_task_without_a_prompt(live: Live) -> None:
    said = refusal(live, {"model": "unit", "input": "a", "task": "text-matching"}, "/v1/embeddings")
    assert "'task'" in said and "are query, document" in said
    plain = openai_form(live, model="bare")
    np.testing.assert_allclose(openai_form(live, model="bare", task="text-matching"), plain, atol=1e-6)


def test_jinas_normalized(live: Live) -> None:
    free = np.array(openai_form(live, model="free"))
    np.testing.assert_allclose(openai_form(live, model="free", normalized=True), normalize(free), atol=1e-6)
    np.testing.assert_allclose(openai_form(live, model="free", normalized=False), free, atol=1e-6)
    assert openai_form(live, normalized=True) == openai_form(live)
    for body, said in (
        ({"model": "unit", "normalized": False}, "have length 1"),
        ({"model": "free", "normalized": True, "embedding_type": "int8"}, "of any length"),
    ):
        assert said in refusal(live, {"input": "a", **body}, "/v1/embeddings")


def test_the_client_gets_arrays_of_the_type(live: Live) -> None:
    with Client(live.url) as client:
        for kind, dtype in DTYPES.items():
            found = client.embed(TEXTS, embedding_type=kind)  # type: ignore[arg-type]
            assert found.dtype == np.dtype(dtype)
            assert np.array_equal(found, listed(ask(live, embedding_type=kind)).astype(dtype))
            assert np.array_equal(next(client.stream("embed", TEXTS, embedding_type=kind)), found[0])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("int8", "parquet"), ("ubinary", "parquet"), ("float16", "parquet"), ("uint8", "csv")],
)
def test_bulk_prediction_writes_a_column_of_the_type(
    live: Live, folder: Path, tmp_path: Path, kind: str, ending: str
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    out = tmp_path / f"out.{ending}"
    ran = run(folder / "unit", rows, "--out", out, "--embedding-type", kind)
    assert ran.returncode == 0, ran.stderr
    expected, found = listed(ask(live, embedding_type=kind)), [row["embedding"] for row in read_rows(out)]
    if ending == "csv":
        assert [json.loads(cell) for cell in found] == expected.tolist()
        return
    import pyarrow.parquet as pq

    column = pq.read_schema(out).field("embedding").type
    assert column.value_type.to_pandas_dtype() is np.dtype(DTYPES[kind]).type
    assert column.list_size == expected.shape[1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_bulk_prediction_refuses_before_there_is_a_row(folder: Path) -> None:
    for name, kind, row, reason in (
        ("bare", "int8", {"text": "a"}, "no ranges"),
        ("unit", "int4", {"text": "a"}, "embedding_type"),
        ("unit", "int8", {"text": "a", "text_pair": "b"}, "two texts get a score"),
    ):
        with (
            pytest.raises(ConfigError, match=reason),
            Predictor(folder / name, embedding_type=kind) as opened,
        ):
            opened.predict([row])
