"""MacBERT's n-grams and similar words, against slow obvious versions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import DataError
from tests.support.pretraining_documents import FIRST, MASK, special_ids
from training.pretraining.examples.base import Example
from training.pretraining.masking.ngrams import (
    NGRAM_SHARES,
    SimilarWordMasking,
    nearest_pieces,
    similar_pieces,
)

SPECIAL = special_ids(200)
SIMILAR = np.full((200, 3), -1, np.int32)
SIMILAR[FIRST:190, 0] = np.arange(FIRST, 190) + 1
SIMILAR[FIRST:100, 1] = np.arange(FIRST, 100) + 2
"""Pieces up to 99 have two similar ones, up to 189 one, the last ten none."""


def example(ids: Any, continues: Any = ()) -> Example:
    ids = np.array([SPECIAL.cls, *ids, SPECIAL.sep], np.int32)
    special = np.zeros(len(ids), bool)
    special[[0, -1]] = True
    return Example(ids, np.zeros(len(ids), np.int8), np.isin(np.arange(len(ids)), continues), special)


def keys(count: int) -> Any:
    return np.random.default_rng(1).integers(2**64, size=count, dtype=np.uint64)


def test_similar_words_80_percent_random_10_kept_10() -> None:
    masking = SimilarWordMasking(SPECIAL, similar=SIMILAR)
    masked = masking.many([example([50] * 98)] * 1500, keys(1500))
    new = np.concatenate([one.ids[one.positions] for one in masked])
    assert not (new == MASK).any()
    assert np.mean(new == 51) == pytest.approx(0.4, abs=0.02) == np.mean(new == 52)
    assert np.mean(new == 50) == pytest.approx(0.1, abs=0.01)
    assert np.mean(~np.isin(new, (50, 51, 52))) == pytest.approx(0.1, abs=0.01)


def test_a_piece_without_similar_ones_becomes_a_random_one() -> None:
    masking = SimilarWordMasking(SPECIAL, mask_share=1.0, random_share=0.0, similar=SIMILAR)
    masked = masking.many([example([195] * 98)] * 200, keys(200))
    new = np.concatenate([one.ids[one.positions] for one in masked])
    assert len(np.unique(new)) > 150 and np.isin(new, SPECIAL.plain).all()
    nothing = SimilarWordMasking(SPECIAL, similar=np.zeros((200, 0), np.int32))
    assert len(nothing.many([example([195] * 98)], keys(1))[0].positions) == 15


def test_ngrams_are_of_1_to_4_words_by_their_shares() -> None:
    masking = SimilarWordMasking(SPECIAL, 4 / 400, similar=SIMILAR)
    masked = masking.many([example([50] * 398)] * 2000, keys(2000))  # four words in each example
    in_a_row = np.mean([np.ptp(one.positions) == 3 for one in masked])
    assert in_a_row == pytest.approx(NGRAM_SHARES[3], abs=0.03)  # the first n-gram has four words
    apart = np.mean([(np.diff(one.positions) > 1).all() for one in masked])
    assert apart == pytest.approx(
        NGRAM_SHARES[0] ** 3, abs=0.03
    )  # three times one word; there is room for one more
    gaps = [np.diff(one.positions).tolist() for one in masked]
    three_and_one = np.mean([(each[:2] == [1, 1]) != (each[1:] == [1, 1]) for each in gaps])
    # Three, then one: 0.2. Or one, then three or the four that find room for three: 0.4 * (0.2 + 0.1).
    assert three_and_one == pytest.approx(0.32, abs=0.03)


def test_the_pieces_of_a_word_share_a_fate() -> None:
    masking = SimilarWordMasking(SPECIAL, similar=SIMILAR)
    continues = np.arange(2, 99, 2)  # words of two pieces
    seen = set()
    for one in masking.many([example([60] * 98, continues)] * 200, keys(200)):
        assert (one.positions.reshape(-1, 2)[:, 1] - one.positions.reshape(-1, 2)[:, 0] == 1).all()
        for word in one.ids[one.positions].reshape(-1, 2).tolist():
            kinds = {"kept" if i == 60 else "similar" if i in (61, 62) else "random" for i in word}
            seen.add(frozenset(kinds))
    assert {frozenset({"kept"}), frozenset({"similar"}), frozenset({"random"})} <= seen
    assert all(
        len(kinds) == 1 or "random" in kinds for kinds in seen
    )  # a random piece may look like the others


def slow_nearest(vectors: Any, plain: list[int], groups: Any, piece: int, count: int) -> list[int]:
    def cosine(other: int) -> float:
        return float(
            vectors[piece] @ vectors[other] / np.linalg.norm(vectors[piece]) / np.linalg.norm(vectors[other])
        )

    others = [o for o in plain if o != piece and groups[o] == groups[piece] and vectors[o].any()]
    found = sorted(others, key=cosine, reverse=True)[:count]
    return found + [-1] * (count - len(found))


def test_nearest_pieces_are_those_of_the_slow_search() -> None:
    rng = np.random.default_rng(0)
    special = special_ids(60)
    vectors, groups = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(2, size=60)
    groups[57:] = 2  # a group of three
    vectors[20] = 0.0  # never trained: near to nothing
    found = nearest_pieces(vectors, special, groups, 4)
    for piece in range(FIRST, 60):
        expected = (
            [-1] * 4 if piece == 20 else slow_nearest(vectors, special.plain.tolist(), groups, piece, 4)
        )
        assert found[piece].tolist() == expected
    assert (found[:FIRST] == -1).all()


def test_a_group_of_one_has_no_neighbours() -> None:
    special = special_ids(12)
    assert (nearest_pieces(np.eye(12), special, np.arange(12), 2) == -1).all()


def vocabulary(folder: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")


def test_word_starts_are_near_word_starts(tmp_path: Path) -> None:
    vocabulary(tmp_path)
    vectors = (
        np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    )  # filled up to a multiple of 16
    np.save(tmp_path / "vectors.npy", vectors)
    found = similar_pieces(tmp_path, tmp_path / "vectors.npy", 2)
    assert found.tolist() == similar_pieces(tmp_path, vectors, 2).tolist()
    assert [sorted(row) for row in found[5:8].tolist()] == [[6, 7], [5, 7], [5, 6]]
    assert found[8:].tolist() == [[9, -1], [8, -1]]


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    vocabulary(tmp_path)
    np.save(tmp_path / "short.npy", np.zeros((3, 4)))
    np.save(tmp_path / "whole.npy", np.zeros((10, 4), np.int64))
    np.save(tmp_path / "nan.npy", np.full((10, 4), np.nan))
    (tmp_path / "text.npy").write_text("0.1 0.2", encoding="utf-8")
    for name, says in {
        "short": r"10 rows of finite numbers.*\(3, 4\)", "whole": "floating-point", "nan": "finite",
        "text": "cannot be read", "missing": "cannot be read",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=says):
            similar_pieces(tmp_path, tmp_path / f"{name}.npy")
