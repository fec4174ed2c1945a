"""Strange files through bert-predict: quotes, line ends, encodings, types, columns."""

import csv
import datetime
import decimal
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.bulk import text_input
from service.bulk.command import SOME_BAD, main
from service.bulk.output import to_json
from service.bulk.text_input import open_text, parse_json
from tests.support.bulk import read_rows, write_rows


@pytest.fixture
def predict(bundles: Path, tmp_path: Path) -> Any:
    def predict(source: Path, out: str, *options: str, model: str = "mood") -> int:
        return main([str(bundles / model), str(source), "--out", str(tmp_path / out), "--quiet", *options])

    return predict


def test_what_tsv_holds_is_read_back(predict: Any, tmp_path: Path) -> None:
    rows = [
        {"id": n, "text": text}
        for n, text in enumerate(['a "dull" film', '"warm"', "it's \\t", "a\tfilm", "a\nfilm", "a\rfilm"])
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert predict(source, "out.tsv") == SOME_BAD
    bad = read_rows(tmp_path / "out.tsv.bad.jsonl")
    assert [row["input"]["id"] for row in bad] == [3, 4, 5]
    assert bad[0]["reason"] == (
        "the text 'a\\tfilm' has a tab or a line end, which tsv cannot hold: write csv or jsonl"
    )
    assert predict(tmp_path / "out.tsv", "again.jsonl", "--prefix", "p_") == 0
    assert [row["text"] for row in read_rows(tmp_path / "again.jsonl")] == [r["text"] for r in rows[:3]]


def test_what_csv_holds_is_read_back(predict: Any, tmp_path: Path) -> None:
    cells = ["a\rfilm", "a\nfilm", "a\r\nfilm", 'a "dull" film', '"', "a,film", " warm "]
    source = write_rows(tmp_path / "in.jsonl", [{"text": text, "a\nb": 1} for text in cells])
    assert predict(source, "out.csv") == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == cells
    assert predict(tmp_path / "out.csv", "again.jsonl", "--prefix", "p_") == 0
    again = read_rows(tmp_path / "again.jsonl")
    assert [row["text"] for row in again] == cells
    assert list(again[0]) == ["text", "a\nb", "label", "score", "p_label", "p_score"]


def rows_of(path: Path) -> list[tuple[str, str]]:
    reader = open_text(str(path), "csv", (), is_compressed=False)
    found = [(row.values.get("text", ""), row.fault) for row in reader.rows()]
    reader.close()
    return found


def test_quotes_that_stay_open_cost_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + 'x","""\n' * 30_000 + '1,"warm\nfilm"\n2,dull\n')
    began = time.process_time()
    found = rows_of(path)
    assert time.process_time() - began < 10
    assert len(found) == 30_002
    assert found[-2:] == [("warm\nfilm", ""), ("dull", "")]
    assert all(fault for _, fault in found[:-2])


def test_a_quote_that_stays_open_takes_one_row(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_input, "MAX_QUOTED_BYTES", 1000)
    path = tmp_path / "in.csv"
    long = "warm\n" * 150
    path.write_text('id,text\n0,"dull\n' + "1,dull\n" * 500 + f'2,"{long}"\n3,"{long * 2}"\n')
    found = rows_of(path)
    assert found[0] == ("", "is not csv: a quote is not closed")
    assert found[1:502] == [("dull", "")] * 500 + [(long, "")]
    assert found[502] == ("", "is not csv: a quote is not closed")


def test_dates_and_numbers_are_plain_text_in_csv(predict: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    nanoseconds = 1_700_000_000_000_000_001
    table = pa.table(
        {
            "text": ["dull", "warm"],
            "price": [decimal.Decimal("1.10"), None],
            "day": [datetime.date(2026, 1, 2)] * 2,
            "when": pa.array([nanoseconds, 0], pa.timestamp("ns")),
            "far": pa.array([2**60, 0], pa.timestamp("ms")),
            "days": pa.array([[2**22], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
            "raw": [b"\x00\xff", None],
        }
    )
    source = tmp_path / "in.parquet"
    pq.write_table(table, source)
    assert predict(source, "out.csv") == 0
    row = read_rows(tmp_path / "out.csv")[0]
    assert [row[name] for name in ("price", "day", "when", "raw")] == [
        "1.10",
        "2026-01-02",
        "2023-11-14 22:13:20.000000001",
        "AP8=",
    ]
    assert row["far"] == f"<value out of range: {2**60}>"
    assert json.loads(row["days"]) == ["13453-08-13"]
    assert predict(source, "out.jsonl") == 0
    assert read_rows(tmp_path / "out.jsonl")[0]["when"] == "2023-11-14 22:13:20.000000001"
    assert predict(source, "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").select(table.column_names).equals(table)


def test_parquet_that_no_row_can_be_read_of_is_refused(predict: Any, tmp_path: Path, capsys: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), source)
    assert predict(source, "out.jsonl") == 2
    assert "has two columns 'text'" in capsys.readouterr().err
    pq.write_table(pa.table({"text": pa.array([2**60], pa.int64()).cast(pa.timestamp("ms"))}), source)
    assert predict(source, "out.jsonl") == 1
    assert "the column 'text' is of timestamp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("in.jsonl", b'{\n  "text": "dull"\n}\n', "in.jsonl:1: is not JSON"),
        ("in.jsonl", '{"text": "dull"}\n'.encode("utf-16-le"), "has NUL bytes, as UTF-16 does"),
        ("in.csv", "text\ndull\n".encode("utf-16-be"), "has NUL bytes, as UTF-16 does"),
        ("in.csv", "text\ndull\n".encode("utf-16"), "is UTF-16"),
    ],
)
def test_a_file_of_another_kind_is_named(
    predict: Any, tmp_path: Path, capsys: Any, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert predict(tmp_path / name, "out.jsonl") == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_bad_row_that_the_output_cannot_keep_is_counted_once(predict: Any, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "dull"}] * 1024
    late: list[dict[str, Any]] = [
        {"text": None, "late": 1},
        {"text": "warm", "label": "mine"},
        {"text": None, "error": "mine"},
    ]
    source = write_rows(tmp_path / "in.jsonl", [*rows, *late])
    for ending, kept in (("csv", 0), ("parquet", 0), ("jsonl", 3)):
        assert predict(source, f"out.{ending}", "--keep-bad") == SOME_BAD
        bad = read_rows(tmp_path / f"out.{ending}.bad.jsonl")
        assert [row["row"] for row in bad] == [1025, 1026, 1027]
        assert bad[0]["reason"] == "text: is null"
        assert [row["input"] for row in bad] == late
        assert len(read_rows(tmp_path / f"out.{ending}")) == 1024 + kept
    for line in (tmp_path / "out.jsonl").read_text().splitlines()[-3:]:
        names = [name for name, _ in json.loads(line, object_pairs_hook=list)]
        assert len(names) == len(set(names))
        assert json.loads(line)["error"] not in (None, "mine")


def test_a_column_of_several_types_is_text_in_parquet(predict: Any, tmp_path: Path) -> None:
    mixed: list[Any] = [1, "two", None, [3], {"four": 4.5}]
    source = write_rows(tmp_path / "in.jsonl", [{"text": "dull", "mixed": value} for value in mixed])
    assert predict(source, "out.parquet") == 0
    found = [row["mixed"] for row in read_rows(tmp_path / "out.parquet")]
    assert found == ["1", "two", None, "[3]", '{"four":4.5}']


def test_vectors_keep_every_bit_in_a_finished_row() -> None:
    values = np.random.default_rng(1).standard_normal(100_000) * np.logspace(-30, 30, 100_000)
    vector = values.astype(np.float32)
    assert np.array_equal(np.asarray(parse_json(to_json(vector)), np.float32), vector)


def test_entities_without_aggregation(predict: Any, tmp_path: Path, monkeypatch: Any) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"text": "angela merkel met in munich"}])
    assert predict(source, "a.jsonl", "--aggregation", "none", model="names") == 0
    monkeypatch.setenv("BERT_PREDICT_AGGREGATION", "none")
    assert predict(source, "b.jsonl", model="names") == 0
    monkeypatch.setenv("BERT_PREDICT_AGGREGATION", "first")
    assert predict(source, "c.jsonl", model="names") == 0
    none, same, first = (read_rows(tmp_path / f"{n}.jsonl")[0]["entities"] for n in "abc")
    assert none == same != first
