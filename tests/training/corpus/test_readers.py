"""Each format gives the same documents, from any place on, and what is wrong is named by file and line."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert.errors import DataError
from training.corpus import documents
from training.corpus.documents import read_records, text_of
from training.corpus.settings import TextSource
from training.corpus.text_files import list_files

TEXTS = ["First document.\nTwo lines.", "Zweites, größer.", "第三。"]


def read(source: str | Path | TextSource, skip: int = 0) -> list[str]:
    found = []
    for file in list_files([str(source) if isinstance(source, Path) else source]):
        found += [text_of(file, record.data).strip() for record in read_records(file, skip)]
    return found


def json_lines(column: str = "text") -> bytes:
    return "".join(json.dumps({"title": "x", column: text}) + "\n" for text in TEXTS).encode()


def plain() -> bytes:
    return ("\n\n" + "\n \n\n".join(TEXTS) + "\n").encode()


def zstd(content: bytes) -> bytes:
    half = len(content) // 2  # two frames, as several threads write them
    return b"".join(pa.compress(part, "zstd", asbytes=True) for part in (content[:half], content[half:]))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_files_plain_and_compressed(tmp_path: Path, name: str, packed: str) -> None:
    file = tmp_path / f"{name}{packed}"
    file.write_bytes(PACKERS[packed](json_lines() if "json" in name else plain()))
    assert read(file) == TEXTS
    assert read(file, skip=2) == TEXTS[2:]


def test_parquet_in_row_groups(tmp_path: Path) -> None:
    table = pa.table({"title": ["a"] * 4, "body": [*TEXTS, None]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    source = TextSource(path=str(tmp_path / "a.parquet"), column="body")
    assert read(source) == [*TEXTS, ""]
    assert read(source, skip=3) == [""]
    with pytest.raises(DataError, match="has no column 'text'; its columns are 'title', 'body'"):
        read(tmp_path / "a.parquet")


def test_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'text' holds int64, which is not text"):
        read(tmp_path / "a.parquet")


def test_a_data_set_in_a_folder_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(json_lines())
    source = TextSource(path=str(tmp_path), format="hub")
    assert read(source) == TEXTS
    assert read(source, skip=1) == TEXTS[1:]


def test_a_saved_data_set_is_known_by_its_files(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved", skip=1) == TEXTS[1:]


def test_part_split_and_revision_are_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(*names: Any, **how: Any) -> Any:
        asked.append((names, how))
        return datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = TextSource(path="a/wiki", format="hub", hub_config="en", hub_split="all", hub_revision="b04c")
    assert read(source) == TEXTS
    assert asked == [(("a/wiki", "en"), {"split": "all", "revision": "b04c", "streaming": True})]


def test_what_is_on_disk_has_no_revision(tmp_path: Path) -> None:
    source = TextSource(path=str(tmp_path), format="hub", hub_revision="b04c")
    with pytest.raises(DataError, match="is here on disk, which has no revision 'b04c'"):
        read(source)


def test_a_folder_and_a_pattern_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "notes.md", "c.txt"):
        (tmp_path / name).write_bytes(json_lines() if "json" in name else name.encode())
    assert read(tmp_path) == [*TEXTS, "b.txt", "c.txt"]
    assert read(str(tmp_path / "*.txt")) == ["b.txt", "c.txt"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "is not json: Expecting ',' delimiter"),
        (b'{"body": "a"}', "has no field 'text'; its fields are 'body'"),
        (b'["a"]', "instead of an object"),
        (b"[" * 200_000, "is json that is nested too deeply"),
        (b'{"text": 3}', "'text' is '3', which is not text"),
        (b'{"text": "\xff"}', "is not UTF-8 (byte 0xff)"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_broken_lines_say_what_is_wrong(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"text": null}\n' + line + b"\n")
    (file,) = list_files([str(tmp_path / "a.jsonl")])
    empty, broken = read_records(file)
    assert (empty.line, broken.line, text_of(file, empty.data)) == (2, 3, "")
    with pytest.raises(ValueError) as caught:
        text_of(file, broken.data)
    assert reason in str(caught.value)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", json_lines()), ("a.txt", plain().lstrip())):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
        assert read(tmp_path / name) == TEXTS


@pytest.mark.parametrize("packed", [".gz", ".xz", ".bz2"])
def test_a_cut_file_is_named(tmp_path: Path, packed: str) -> None:
    whole = PACKERS[packed](json_lines() * 50)
    (tmp_path / f"a.jsonl{packed}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"a.jsonl{packed}: cannot be read"):
        read(tmp_path / f"a.jsonl{packed}")


def test_plain_text_without_a_blank_line_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 10)
    (tmp_path / "a.txt").write_text("one two\nthree\nfour five six\nend")
    assert read(tmp_path / "a.txt") == ["one two\nthree", "four five six", "end"]


def test_reading_is_lazy(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a line\n\n" * 100_000)
    (found,) = list_files([str(file)])
    assert next(read_records(found)).share <= 2 * io.DEFAULT_BUFFER_SIZE / file.stat().st_size


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; a data set of the hub needs format: hub"):
        list_files([str(tmp_path / "none.jsonl")])
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(DataError, match="has no ending that says its format"):
        list_files([str(tmp_path / "a.doc")])


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.999])
def test_a_zstd_file_that_was_cut_off_is_not_taken_for_a_whole_one(tmp_path: Path, kept: float) -> None:
    texts = b"\n\n".join(f"document {n} {'x' * (n % 97)} {n * n}".encode() for n in range(60_000))
    whole = zstd(texts)
    (tmp_path / "a.txt.zst").write_bytes(whole)
    assert len(read(tmp_path / "a.txt.zst")) == 60_000
    (tmp_path / "b.txt.zst").write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(DataError, match=r"b\.txt\.zst: cannot be read: Truncated compressed stream"):
        read(tmp_path / "b.txt.zst")


def test_a_folder_without_text_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"x")
    with pytest.raises(DataError, match="holds no file that ends in "):
        list_files([str(tmp_path)])


def test_what_is_written_is_not_read_as_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "out" / ".prepare").mkdir(parents=True)
    (tmp_path / "out" / ".prepare" / "notes.json").write_text("{}")
    (tmp_path / "out" / "b.jsonl").write_text('{"text": "two"}\n')
    (only,) = list_files([str(tmp_path)], besides=tmp_path / "out")
    assert only.path.endswith("a.jsonl")
