"""The words most like each other, against a slow search, and the words of a corpus and of a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from tests.support.pretraining_documents import document
from training.corpus.shards import Corpus, Document, write_index, write_shard
from training.pretraining.examples.base import SpecialIds
from training.pretraining.masking import similar_words
from training.pretraining.masking.similar_words import (
    WordTable,
    frequent_words,
    neighbours,
    of_pieces,
    of_words,
)

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "cat",
    "dog",
    "car",
    "bus",
    "go",
    "run",
    "##ing",
    "##s",
    "##ner",
]


def near(table: WordTable, *word: int) -> list[list[int]]:
    """Return the words near a word, nearest first."""
    place = np.flatnonzero((table.pieces == word).all(axis=1)).item()
    return [table.pieces[i].tolist() for i in table.near[place] if i >= 0]


def slow_nearest(pieces: Any, vectors: Any, word: int, count: int) -> list[list[int]]:
    def cosine(other: int) -> float:
        lengths = np.linalg.norm(vectors[word]) * np.linalg.norm(vectors[other])
        return float(vectors[word] @ vectors[other] / lengths)

    others = [o for o in range(len(vectors)) if o != word and vectors[o].any()]
    return [pieces[o].tolist() for o in sorted(others, key=cosine, reverse=True)[:count]]


def test_nearest_words_are_those_of_the_slow_search() -> None:
    rng = np.random.default_rng(0)
    pieces = np.stack(np.meshgrid(np.arange(10), np.arange(6)), -1).reshape(-1, 2).astype(np.int32)
    vectors = rng.normal(size=(60, 5)).astype(np.float32)
    vectors[20] = 0.0  # never trained: near to nothing
    table = neighbours(pieces, vectors, 4)
    for word in range(60):
        expected = [] if word == 20 else slow_nearest(pieces, vectors, word, 4)
        assert near(table, *pieces[word]) == expected


@pytest.mark.parametrize("words", [1, 2])
def test_few_words_have_few_neighbours(words: int) -> None:
    table = neighbours(np.arange(words, dtype=np.int32)[:, None], np.eye(2)[:words])
    assert [near(table, word) for word in range(words)] == [
        [[1 - word]] * (words - 1) for word in range(words)
    ]


def corpus(folder: Path, shards: list[list[Document]]) -> Corpus:
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    entries = [write_shard(folder, f"train-{i:05}", shard, 2) for i, shard in enumerate(shards)]
    about = {"token_bytes": 2, "tokenizer": {"vocab_size": len(PIECES)}}
    write_index(folder, {**about, "splits": {"train": entries, "held_out": []}})
    return Corpus.open(folder)


TEXT = [
    [document([5, 6, 9, 11, 1], [10, 11], continues=[11]), document([7, 5, 13], continues=[13])],
    [document([5, 5, 8, 12, 12], continues=[12])],
]
"""cat dog go·ing [UNK] run·ing car cat·ner and cat cat bus·s·s"""


def test_words_are_those_of_the_corpus(tmp_path: Path) -> None:
    text = corpus(tmp_path, TEXT)
    found = frequent_words(text, SpecialIds.load(tmp_path))
    assert {n: sorted(words.tolist()) for n, words in found.items()} == {
        1: [[5], [6], [7]], 2: [[5, 13], [9, 11], [10, 11]], 3: [[8, 12, 12]],
    }  # fmt: skip


def test_the_most_frequent_words_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_words, "MAX_WORDS", 1)
    found = frequent_words(corpus(tmp_path, TEXT), SpecialIds.load(tmp_path))
    assert {n: words.tolist() for n, words in found.items()} == {1: [[5]]}  # cat: three times


def test_a_word_has_the_mean_of_its_pieces_vectors(tmp_path: Path) -> None:
    text, special = corpus(tmp_path, TEXT), SpecialIds.load(tmp_path)
    vectors = np.random.default_rng(0).normal(size=(16, 4))  # filled up to a multiple of 16
    np.save(tmp_path / "vectors.npy", vectors)
    for given in (vectors, tmp_path / "vectors.npy"):
        found = of_pieces(text, given, special)
        words = np.array([[5, 13], [9, 11], [10, 11]])
        means = (vectors[words[:, 0]] + vectors[words[:, 1]]) / 2
        assert near(found[2], 9, 11) == slow_nearest(words, means, 1, 8)
        assert sorted(near(found[1], 5)) == [[6], [7]]


def test_words_may_have_vectors_of_their_own(tmp_path: Path) -> None:
    corpus(tmp_path, TEXT)
    file = tmp_path / "words.vec"
    lines = [
        "6 2",
        "cat 1 0.1",
        "dog 1 0.2",
        "car 0.1 1",
        "going 1 0",
        "running 1 0.1",
        "unheard 1 1",
        "cat 0 1",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    found = of_words(file, tokenizer, SpecialIds.load(tmp_path))
    assert near(found[1], 5) == [[6], [7]] and near(found[1], 7) == [[6], [5]]
    assert found[2].pieces.tolist() == [[9, 11]] and near(found[2], 9, 11) == []
    assert len(found[1].pieces) == 3  # the second cat and a word with [UNK] are left out


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    text, special = corpus(tmp_path, TEXT), SpecialIds.load(tmp_path)
    np.save(tmp_path / "short.npy", np.zeros((3, 4)))
    np.save(tmp_path / "whole.npy", np.zeros((14, 4), np.int64))
    np.save(tmp_path / "nan.npy", np.full((14, 4), np.nan))
    (tmp_path / "text.npy").write_text("0.1 0.2", encoding="utf-8")
    for name, says in {
        "short": r"14 rows of finite numbers.*\(3, 4\)", "whole": "floating-point", "nan": "finite",
        "text": "cannot be read", "missing": "cannot be read",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=says):
            of_pieces(text, tmp_path / f"{name}.npy", special)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["cat 1 2", "dog 1"], "words.vec:2: must be a word and 2 finite numbers"),
        (["cat 1 2", "dog 1 x"], "words.vec:2: must be a word and 2"),
        (["cat 1 nan"], "words.vec:1: must be a word and 2 finite numbers"),
        (["cat"], "words.vec:1: must be a word and its finite numbers"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[str], says: str) -> None:
    corpus(tmp_path, TEXT)
    file = tmp_path / "words.vec"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=says):
        of_words(file, Tokenizer.load(tmp_path), SpecialIds.load(tmp_path))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        of_words(tmp_path / "missing.vec", Tokenizer.load(tmp_path), SpecialIds.load(tmp_path))
