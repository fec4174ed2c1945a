"""Shards on disk: what is written is what is read, and damage is seen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.errors import DataError
from tests.support.shards import assert_hashes
from training.corpus.shards import Corpus, Document, Shard, write_index, write_shard

Sentences = list[list[int]]


def document(sentences: Sentences) -> Document:
    ids = [token for sentence in sentences for token in sentence]
    borders = np.cumsum([0, *map(len, sentences)])
    return Document(
        np.array(ids, np.int32), np.array([token % 2 for token in ids], bool), borders.astype(np.int32)
    )


def write(folder: Path, texts: list[Sentences], token_bytes: int = 2, **info: Any) -> Corpus:
    entry = write_shard(folder, "train-00000", map(document, texts), token_bytes)
    about = {"token_bytes": token_bytes, "tokenizer": {"vocab_size": 65536}, **info}
    write_index(folder, {**about, "splits": {"train": [entry], "held_out": []}})
    return Corpus.open(folder)


def read(shard: Shard) -> list[Sentences]:
    found = []
    for each in map(shard.document, range(len(shard))):
        pieces = np.split(each.tokens, each.sentences[1:-1])
        found.append([piece.tolist() for piece in pieces])
    return found


@settings(max_examples=20)  # each waits for the disk
@given(
    texts=st.lists(
        st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=5), min_size=1, max_size=4), max_size=5
    ),
    token_bytes=st.sampled_from([2, 4]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Sentences], token_bytes: int
) -> None:
    corpus = write(tmp_path_factory.mktemp("corpus"), texts, token_bytes)
    (shard,) = corpus.shards("train")
    assert read(shard) == texts
    flags = [shard.document(index).continues.tolist() for index in range(len(shard))]
    assert flags == [[bool(token % 2) for sentence in text for token in sentence] for text in texts]
    assert_hashes(corpus)


def test_files_are_plain_little_endian_arrays(tmp_path: Path) -> None:
    write(tmp_path, [[[1, 2], [3]], [[4]]])
    assert np.fromfile(tmp_path / "train-00000.tokens", "<u2").tolist() == [1, 2, 3, 4]
    assert np.fromfile(tmp_path / "train-00000.continues", "u1").tolist() == [1, 0, 1, 0]
    assert np.fromfile(tmp_path / "train-00000.sentences", "<u4").tolist() == [0, 2, 3, 4]
    assert np.fromfile(tmp_path / "train-00000.documents", "<u4").tolist() == [0, 2, 3]


def test_the_index_has_totals(tmp_path: Path) -> None:
    corpus = write(tmp_path, [[[1, 2], [3]], [[4]]], seed=7)
    train = corpus.info["splits"]["train"]
    assert (train["documents"], train["sentences"], train["tokens"]) == (2, 3, 4)
    assert corpus.info["splits"]["held_out"] == {"documents": 0, "sentences": 0, "tokens": 0, "shards": []}
    assert (corpus.info["seed"], corpus.vocab_size, corpus.shards("held_out")) == (7, 65536, [])


def test_an_id_over_the_type_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="id 65536 does not fit in 2 bytes"):
        write_shard(tmp_path, "train-00000", [document([[65536]])], 2)
    assert list(tmp_path.iterdir()) == []


def test_a_document_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    broken = Document(np.zeros(3, np.int32), np.zeros(2, bool), np.array([0, 3], np.int32))
    with pytest.raises(ValueError, match="3 tokens has 2 flags"):
        write_shard(tmp_path, "train-00000", [broken], 2)


def test_a_cut_file_is_seen_at_opening(tmp_path: Path) -> None:
    corpus = write(tmp_path, [[[1, 2, 3]]])
    (tmp_path / "train-00000.tokens").write_bytes(b"\1\0")
    with pytest.raises(DataError, match=r"train-00000.tokens: has 2 bytes instead of 6"):
        corpus.shards("train")


def test_a_folder_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bert-prepare has not finished"):
        Corpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text('{"schema_version": 2}')
    with pytest.raises(DataError, match="has schema_version 2; this version reads 1"):
        Corpus.open(tmp_path)


def test_an_unknown_split_and_document_are_named(tmp_path: Path) -> None:
    corpus = write(tmp_path, [[[1]]])
    with pytest.raises(DataError, match="no split 'dev', only train, held_out"):
        corpus.shards("dev")
    with pytest.raises(IndexError, match="document 1 of train-00000"):
        corpus.shards("train")[0].document(1)
