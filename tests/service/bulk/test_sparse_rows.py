"""Sparse vectors of rows: a column with indices and values, in each format."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from service.bulk.command import main
from service.bulk.predictor import Predictor
from tests.support.tiny import write_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("terms") / "terms"
    write_tiny_bundle(folder, "terms", TaskSpec("sparse", query_weights=True, max_tokens=16), 1)
    return folder


def test_parquet_has_lists_of_indices_and_values(bundle: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a warm film", "")), "utf-8")
    options = ["--side", "query", "--top-k", "2", "--pieces", "--quiet"]
    for ending in ("jsonl", "parquet"):
        assert main([str(bundle), str(rows), "--out", str(tmp_path / f"out.{ending}"), *options]) == 0
    (first, second) = map(json.loads, (tmp_path / "out.jsonl").read_text("utf-8").splitlines())
    assert len(first["sparse"]["pieces"]) == 2
    assert second["sparse"] == {"indices": [], "values": [], "pieces": []}
    table = pq.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("sparse").type) == (
        "struct<indices: list<element: int64>, values: list<element: float>, pieces: list<element: string>>"
    )
    for ours, written in zip(table["sparse"].to_pylist(), (first, second), strict=True):
        assert ours["indices"] == written["sparse"]["indices"]
        assert ours["values"] == pytest.approx(written["sparse"]["values"])


def test_options_of_dense_vectors_are_refused(bundle: Path) -> None:
    predictor = Predictor(bundle, dimensions=8)
    try:
        with pytest.raises(ConfigError, match="dimensions: is '8'; model 'terms' gives sparse"):
            predictor.predict([{"text": "a"}])
    finally:
        predictor.close()
