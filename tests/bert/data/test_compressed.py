"""Labelled files that are compressed."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bert.data.examples import LabelledFile
from bert.data.files import ending, first_line, read_text, stem
from bert.data.read import read_labelled
from bert.errors import DataError

FILES = {
    "a.csv": ("classification", "text,label\ngood,1\nbad,0\n"),
    "a.jsonl": ("classification", '{"text": "good", "label": "1"}\n{"text": "bad", "label": "0"}\n'),
    "a.conll": ("ner", "Paris\tB-LOC\n\nRome\tB-LOC\n"),
    "b.jsonl": ("ner", '{"text": "Paris", "spans": [{"start": 0, "end": 5, "label": "LOC"}]}\n'),
    "a.json": (
        "qa",
        '{"version": "v2.0", "data": [{"title": "", "paragraphs": [{"context": "It is red.", "qas": '
        '[{"id": "1", "question": "What?", "answers": [{"text": "red", "answer_start": 6}]}]}]}]}',
    ),
}


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".XZ", lzma.compress), (".bz2", bz2.compress), (".zst", zstd)],
)
@pytest.mark.parametrize("name", FILES)
def test_compressed_file_reads_as_the_plain_one(
    tmp_path: Path, name: str, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    task, content = FILES[name]
    plain, packed = tmp_path / name, tmp_path / f"{name}{suffix}"
    plain.write_text(content)
    packed.write_bytes(compress(content.encode()))
    expected = read_labelled(LabelledFile(path=plain), task)
    assert expected and read_labelled(LabelledFile(path=packed), task) == expected
    assert first_line(packed) == first_line(plain)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), (".zst", zstd)],
)
def test_compressed_file_with_a_plain_name_is_refused(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(compress(b"text,label\n" + b"good,1\n" * 100))
    with pytest.raises(DataError, match=rf"is compressed; name it a\.csv\{suffix}"):
        read_text(path)
    twice = path.with_name(f"a.csv{suffix}")
    twice.write_bytes(compress(path.read_bytes()))
    with pytest.raises(DataError, match="is compressed twice"):
        read_text(twice)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_damaged_file_is_refused(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    packed = compress(b"text,label\n" + b"good,1\n" * 1000)
    for content in (packed[:-9], b"text,label\n"):
        path = tmp_path / f"a.csv{suffix}"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.csv.* cannot be read: \w+"):
            read_text(path)


def test_names() -> None:
    assert (ending("x/A.JSONL.xz"), stem("x/A.JSONL.xz")) == (".jsonl", "A")
    assert (ending("a.b.tsv"), stem("a.b.tsv")) == (".tsv", "a.b")
    assert (ending("a.gz"), ending("a")) == ("", "")
