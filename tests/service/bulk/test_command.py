"""bert-predict on files, in this process: formats, tasks, columns, bad rows, refusals."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.bulk.command import SOME_BAD, main
from service.bulk.journal import Journal
from service.bulk.output import Output
from service.bulk.predictor import Predictor
from service.bulk.settings import PredictSettings
from service.bulk.tasks import FIELDS
from service.tasks.table import BY_ROW
from tests.support.bulk import read_rows, texts, write_rows

ROWS: dict[str, list[dict[str, Any]]] = {
    "mood": [{"id": str(n), "text": text} for n, text in enumerate(texts(40))],
    "topics": [{"id": str(n), "text": text} for n, text in enumerate(texts(9))],
    "stars": [{"id": str(n), "text": text} for n, text in enumerate(texts(9))],
    "entailment": [{"text": text, "text_pair": "a warm film"} for text in texts(9)],
    "names": [{"text": text} for text in texts(9)],
    "reader": [{"question": "who is it", "context": f"angela {text}"} for text in texts(9)],
    "meaning": [{"text": text} for text in texts(9)],
    "stories": [{"prompt": text, "choices": ["it was warm", "it was dull"]} for text in texts(9)],
    "gaps": [{"text": f"{text} [MASK]"} for text in texts(9)],
}
LONG = "the film was dull " * 20


def expected_of(bundle: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with Predictor(bundle) as predictor:
        found = predictor.predict(rows)
    plain = [json.loads(json.dumps(each.columns, default=lambda vector: vector.tolist())) for each in found]
    return [{**row, **columns} for row, columns in zip(rows, plain, strict=True)]


def as_json(value: Any) -> Any:
    """Return a cell of csv as what it stands for."""
    try:
        return json.loads(value)
    except ValueError:
        return value or None


def alike(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [list(row) for row in found] == [list(row) for row in expected]
    for row, other in zip(found, expected, strict=True):
        for name, value in row.items():
            if isinstance(value, str) and not isinstance(other[name], str):
                value = as_json(value)
            if isinstance(value, list) and value and isinstance(value[0], float):
                assert value == pytest.approx(other[name], rel=1e-6)
            else:
                assert value == other[name], name


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_every_format_holds_every_task(bundles: Path, tmp_path: Path, name: str, ending: str) -> None:
    source = write_rows(tmp_path / f"in.{ending}", ROWS[name])
    out = tmp_path / f"out.{ending}"
    assert main([str(bundles / name), str(source), "--out", str(out), "--quiet"]) == 0
    expected = expected_of(bundles / name, ROWS[name])
    if ending == "csv":
        expected = [{k: json.dumps(v) if k == "choices" else v for k, v in row.items()} for row in expected]
    alike(read_rows(out), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, out.name]


@pytest.mark.parametrize("source", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("target", ["jsonl", "csv", "tsv", "parquet"])
def test_any_format_becomes_any_other(bundles: Path, tmp_path: Path, source: str, target: str) -> None:
    read = write_rows(tmp_path / f"in.{source}", ROWS["mood"])
    out = tmp_path / f"out.{target}"
    assert main([str(bundles / "mood"), str(read), "--out", str(out), "--quiet"]) == 0
    alike(read_rows(out), expected_of(bundles / "mood", ROWS["mood"]))


def test_compressed_files_are_read_and_written(bundles: Path, tmp_path: Path) -> None:
    plain = write_rows(tmp_path / "in.jsonl", ROWS["mood"])
    packed, out = tmp_path / "in.jsonl.gz", tmp_path / "out.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert main([str(bundles / "mood"), str(packed), "--out", str(out), "--quiet"]) == 0
    lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    assert lines[0] == "id,text,label,score"
    assert len(lines) == 41


def test_json_lines_stay_byte_for_byte(bundles: Path, tmp_path: Path) -> None:
    lines = [
        '{"text": "dull",  "n": 123456789012345678901234567890, "x": NaN, "y": 1.50, "z": "\\u00e9"}',
        '{"text":"warm","n":{"a":[1,null]}}  ',
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == 0
    for line, written in zip(lines, out.read_text().splitlines(), strict=True):
        assert written.startswith(line.strip()[:-1] + ',"label":')
    csv_out = tmp_path / "out.csv"
    assert main([str(bundles / "mood"), str(source), "--out", str(csv_out), "--quiet"]) == 0
    assert [row["n"] for row in read_rows(csv_out)] == ["123456789012345678901234567890", '{"a":[1,null]}']


def test_a_text_of_csv_that_looks_like_json_is_a_text(bundles: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("text\n{dull}\n")
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == 0
    assert [row["text"] for row in read_rows(out)] == ["{dull}"]


def test_bad_rows_go_to_their_own_file(bundles: Path, tmp_path: Path, capsys: Any) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = ['{"text": "dull"}', "", '{"text": ', "[1]", '{"id": 7}', '{"text": 5}', f'{{"text": "{LONG}"}}']
    source.write_bytes("\n".join([*lines, '{"text": "\\ud800"}', ""]).encode())
    with source.open("ab") as file:
        file.write(b'{"text": "\xff"}\n{"text": "funny"}')
    assert main([str(bundles / "mood"), str(source), "--out", str(out)]) == SOME_BAD
    assert [row["text"] for row in read_rows(out)] == ["dull", "funny"]
    bad = read_rows(tmp_path / "out.jsonl.bad.jsonl")
    assert [(row["row"], row["line"]) for row in bad] == [
        (2, 3),
        (3, 4),
        (4, 5),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 9),
    ]
    assert [row["reason"].partition(":")[0] for row in bad] == [
        "is not JSON",
        "is [1] instead of an object",
        "text",
        "text",
        "text",
        "is not valid Unicode",
        "is not UTF-8",
    ]
    assert bad[2]["input"] == {"id": 7}
    assert bad[0]["input"] == '{"text":'
    said = capsys.readouterr().err
    assert "9 rows in " in said
    assert "7 bad" in said
    assert f"bad rows with their reasons: {out}.bad.jsonl" in said


def test_bad_rows_are_kept_where_that_is_asked_for(bundles: Path, tmp_path: Path) -> None:
    rows = [{"text": "dull"}, {"text": LONG}, {"text": "warm"}]
    for ending in ("jsonl", "csv", "parquet"):
        source, out = write_rows(tmp_path / f"in.{ending}", rows), tmp_path / f"out.{ending}"
        assert (
            main([str(bundles / "mood"), str(source), "--out", str(out), "--keep-bad", "--quiet"]) == SOME_BAD
        )
        found = read_rows(out)
        assert [bool(row["error"]) for row in found] == [False, True, False]
        assert not found[1]["label"]
        assert found[1]["text"] == LONG


def test_a_column_that_the_first_rows_have_not_makes_a_row_bad(bundles: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "dull"}] * 1100
    source = write_rows(
        tmp_path / "in.jsonl", [*rows, {"text": "warm", "label": 1}, {"text": "warm", "x": 1}]
    )
    for ending, count in (("jsonl", 1), ("csv", 2), ("parquet", 2)):
        out = tmp_path / f"out.{ending}"
        assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == SOME_BAD
        bad = read_rows(Path(f"{out}.bad.jsonl"))
        assert [row["row"] for row in bad] == [1101, 1102][:count]
        assert bad[0]["reason"] == "has a column 'label', which is the name of a new one (--prefix)"
        assert all("a column 'x', which the first rows have not" in row["reason"] for row in bad[1:])
        assert len(read_rows(out)) == 1102 - count


def test_too_many_bad_rows_end_the_run(bundles: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [{"text": LONG if n % 100 == 5 else "dull"} for n in range(5000)]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]
    assert main([*arguments, "--max-bad", "20"]) == 1
    assert "21 of the first 2,048 rows are bad, and 20 may be (--max-bad)" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--max-bad", "20"]) == 1
    assert "an earlier run found them" in capsys.readouterr().err
    assert main([*arguments, "--max-bad", "60"]) == SOME_BAD  # goes on
    assert len(read_rows(out)) == 4950
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl.bad.jsonl")] == list(range(6, 5000, 100))


def test_csv_is_read_as_users_have_it(bundles: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(
        b'\xef\xbb\xbfid;text\r\n1;"warm; and\r\nfunny"\r\n\r\n2;"a ""dull"" film"\r\n3\r\n4;"not closed\r\n5;it is\r\n'
    )
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == SOME_BAD
    assert out.read_bytes().startswith(b"id;text;label;score\n")
    with out.open(newline="") as file:
        found = list(csv.DictReader(file, delimiter=";"))
    assert [row["text"] for row in found] == ["warm; and\r\nfunny", 'a "dull" film', "it is"]
    bad = read_rows(tmp_path / "out.csv.bad.jsonl")
    assert [(row["row"], row["line"], row["input"]) for row in bad] == [(3, 6, "3"), (4, 7, '4;"not closed')]


def test_parquet_keeps_its_types(bundles: Path, tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    words = texts(30)
    table = pa.table(
        {
            "text": pa.array(words, pa.large_string()).dictionary_encode(),
            "when": pa.array([1_700_000_000_000_000_001] * 30, pa.timestamp("ns", "UTC")),
            "tags": pa.array([["a", None]] * 30, pa.list_(pa.string())),
            "small": pa.array([n if n % 2 else None for n in range(30)], pa.int8()),
        }
    )
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(table, source, row_group_size=7)
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == 0
    found = pq.read_table(out)
    assert found.select(table.column_names).cast(table.schema).equals(table)
    assert found.schema.field("when").type == pa.timestamp("ns", "UTC")
    assert found.schema.field("score").type == pa.float64()
    day = pa.table({"text": words, "day": [datetime.date(2026, 1, 2)] * 30})
    pq.write_table(day, source)
    out = tmp_path / "days.jsonl"
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]) == 0
    assert read_rows(out)[0]["day"] == "2026-01-02"


def test_embeddings_are_vectors_in_parquet(bundles: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    source, out = write_rows(tmp_path / "in.jsonl", ROWS["meaning"]), tmp_path / "out.parquet"
    assert main([str(bundles / "meaning"), str(source), "--out", str(out), "--quiet"]) == 0
    assert str(pq.read_schema(out).field("embedding").type).startswith("fixed_size_list<element: float>[32]")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "review,stars\ngood,5\n",
            "has no column 'text'; its columns are 'review', 'stars': name another with --text-column",
        ),
        ("", "is empty"),
        ("text,text\na,b\n", "has two columns 'text'"),
        ("text,label\na,b\n", "has a column 'label' already: give the new columns other names, --prefix"),
    ],
)
def test_a_wrong_file_is_refused_before_the_start(
    bundles: Path, tmp_path: Path, capsys: Any, content: str, reason: str
) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(content)
    assert main([str(bundles / "mood"), str(source), "--out", str(out)]) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_wrong_arguments_are_refused(bundles: Path, tmp_path: Path, capsys: Any) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", ROWS["mood"]), tmp_path / "out.jsonl"
    mood = str(bundles / "mood")
    (tmp_path / "list.jsonl").write_text('[{"text": "dull"}]')
    (tmp_path / "there.jsonl").write_text("x")
    cases = {
        (mood, str(source)): "out: Field required",
        (mood, "--out", str(out)): "give a bundle's folder and the input",
        (mood, str(tmp_path / "no.jsonl"), "--out", str(out)): "cannot be read: No such file",
        (mood, str(source), "--out", str(tmp_path / "out.xlsx")): "the ending .xlsx is of no format",
        (mood, str(source), "--out", str(tmp_path / "no" / "out.csv")): "there is no folder",
        (mood, str(source), "--out", str(source)): "is the input itself",
        (
            mood,
            str(source),
            "--out",
            str(tmp_path / "there.jsonl"),
        ): "is there already: --overwrite replaces it",
        (
            mood,
            str(tmp_path / "list.jsonl"),
            "--out",
            str(out),
        ): "is a JSON list; jsonl has an object on each line",
        (
            mood,
            str(source),
            "--out",
            "-",
            "--output-format",
            "parquet",
        ): "parquet cannot come from or go to a pipe",
        (
            str(bundles / "names"),
            str(source),
            "--out",
            str(out),
            "--top-k",
            "2",
        ): "is for ner, which has no option top_k",
        (mood, str(source), "--out", str(out), "--text-column", "x"): "has no column 'x'",
        (
            mood,
            str(source),
            "--out",
            str(out),
            "--question-column",
            "id",
        ): "--question-column: the model reads text",
        (str(bundles / "none"), str(source), "--out", str(out)): "none",
    }
    for arguments, reason in cases.items():
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert "goes on" not in said
    assert not out.exists()
    assert (tmp_path / "there.jsonl").read_text() == "x"


def test_an_output_is_replaced_only_when_that_is_asked_for(bundles: Path, tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", ROWS["mood"]), tmp_path / "out.jsonl"
    out.write_text("old")
    Path(f"{out}.bad.jsonl").write_text("old")
    assert main([str(bundles / "mood"), str(source), "--out", str(out), "--overwrite", "--quiet"]) == 0
    assert len(read_rows(out)) == 40
    assert not Path(f"{out}.bad.jsonl").exists()


def test_options_and_columns_reach_the_task(bundles: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.csv", [{"review": LONG, "label": "x"}])
    out = tmp_path / "out.jsonl"
    options = ["--text-column", "review", "--prefix", "p_", "--top-k", "1", "--truncate", "--quiet"]
    assert main([str(bundles / "mood"), str(source), "--out", str(out), *options]) == 0
    found = read_rows(out)[0]
    assert list(found) == ["review", "label", "p_label", "p_score", "p_scores", "p_truncated"]
    assert found["p_truncated"] is True
    assert len(found["p_scores"]) == 1


def test_every_option_of_every_task_is_a_setting() -> None:
    fields = PredictSettings.model_fields
    options = {name for task in BY_ROW.values() for name in task.options}
    # A bundle decides the first; the other reads several texts as one.
    assert options - {"vectors", "late_chunking"} <= set(fields)
    assert {f"{name}_column" for name in FIELDS} == {name for name in fields if name.endswith("_column")}
    given = PredictSettings(paths=["a", "b"], out="c", aggregation="none", labels="PER, LOC", truncate=True)
    assert given.options == {"aggregation": "none", "labels": ["PER", "LOC"], "truncate": True}


def test_a_list_of_labels_for_each_row_is_refused_and_not_split() -> None:
    nested: Any = [["a", "b"], ["c"]]
    with pytest.raises(ValidationError, match=r"labels\.0\n.*valid string"):
        PredictSettings(paths=["a", "b"], out="c", labels=nested)


def test_a_file_without_rows_gives_one_without_rows(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    (tmp_path / "in.csv").write_text("text\n")
    for source, out in (("in.jsonl", "a.jsonl"), ("in.csv", "b.csv"), ("in.csv", "c.parquet")):
        assert (
            main([str(bundles / "mood"), str(tmp_path / source), "--out", str(tmp_path / out), "--quiet"])
            == 0
        )
        assert read_rows(tmp_path / out) == []


def test_the_last_chunk_has_too_many_bad_rows_each_time(bundles: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"text": "dull"}, {"text": None}])
    arguments = [str(bundles / "mood"), str(source), "--out", str(tmp_path / "out.jsonl"), "--quiet"]
    assert main([*arguments, "--max-bad", "0"]) == 1
    assert main([*arguments, "--max-bad", "0"]) == 1
    assert not (tmp_path / "out.jsonl").exists()
    assert main([*arguments, "--max-bad", "1"]) == SOME_BAD


@pytest.mark.parametrize("option", ["--batch-tokens", "--engine-slots", "--engine-threads-per-slot"])
def test_a_run_does_not_go_on_with_another_engine(
    bundles: Path, tmp_path: Path, capsys: Any, option: str
) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"text": "dull"}, {"text": None}])
    arguments = [str(bundles / "mood"), str(source), "--out", str(tmp_path / "out.jsonl"), "--quiet"]
    assert main([*arguments, "--max-bad", "0"]) == 1
    assert main([*arguments, option, "1"]) == 2
    name = option[2:].replace("-", "_")
    assert f"another {name} (now 1, then null): --restart begins again" in capsys.readouterr().err


def test_no_record_is_promised_where_there_is_none(
    bundles: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    source = write_rows(tmp_path / "in.jsonl", ROWS["mood"])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "append", full)
    monkeypatch.setattr(Output, "write", full)
    assert main([str(bundles / "mood"), str(source), "--out", "-"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "goes on" not in said
    assert main([str(bundles / "mood"), str(source), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert "the same command goes on from the last record" in capsys.readouterr().err
