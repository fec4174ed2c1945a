"""MacBERT's similar words: as long as the word that they replace."""

from typing import Any

import numpy as np
import pytest

from tests.support.pretraining_documents import MASK, special_ids
from training.pretraining.examples.base import Example
from training.pretraining.masking.similar_words import SimilarWordMasking, WordTable, word_hashes

SPECIAL = special_ids(200)


def table(words: list[list[int]], near: list[list[int]]) -> WordTable:
    """Return a table of words with the places of their near words."""
    pieces = np.array(words, np.int32)
    order = np.argsort(word_hashes(pieces))
    place = np.argsort(order)
    moved = np.array([[place[i] if i >= 0 else -1 for i in row] for row in near], np.int32)
    return WordTable(word_hashes(pieces)[order], pieces[order], moved[order])


SIMILAR = {
    1: table([[50], [51], [52], [53]], [[1, 2], [0, -1], [0, 1], [-1, -1]]),
    2: table([[60, 61], [70, 71], [80, 81]], [[1, 2], [0, 2], [0, 1]]),
}
"""50 is like 51 and 52, 53 like none; 60 61 is like 70 71 and 80 81."""


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


def test_a_word_of_two_pieces_becomes_a_word_of_two_pieces() -> None:
    masking = SimilarWordMasking(SPECIAL, mask_share=1.0, random_share=0.0, similar=SIMILAR)
    continues = np.arange(2, 99, 2)
    seen = set()
    for one in masking.many([example([60, 61] * 49, continues)] * 100, keys(100)):
        assert (one.positions.reshape(-1, 2) % 2 == [1, 0]).all()
        seen |= set(map(tuple, one.ids[one.positions].reshape(-1, 2).tolist()))
        assert one.labels.tolist() == [60, 61] * (len(one.labels) // 2)
    assert seen == {(70, 71), (80, 81)}


@pytest.mark.parametrize("piece", [53, 195])
def test_a_word_without_similar_ones_becomes_random_pieces(piece: int) -> None:
    masking = SimilarWordMasking(SPECIAL, mask_share=1.0, random_share=0.0, similar=SIMILAR)
    masked = masking.many([example([piece] * 98)] * 200, keys(200))
    new = np.concatenate([one.ids[one.positions] for one in masked])
    assert len(np.unique(new)) > 150 and np.isin(new, SPECIAL.plain).all()
    longer = masking.many([example([50] * 3 + [60] * 95, np.arange(5, 99))], keys(1))[0]
    assert len(longer.positions) == 3  # the word of 95 pieces exceeds the budget


def test_ngrams_are_of_1_to_4_words_by_their_shares() -> None:
    masking = SimilarWordMasking(SPECIAL, 4 / 400, similar=SIMILAR)
    masked = masking.many([example([50] * 398)] * 2000, keys(2000))  # four words in each example
    in_a_row = np.mean([np.ptp(one.positions) == 3 for one in masked])
    assert in_a_row == pytest.approx(0.1, abs=0.03)  # the first n-gram has four words
    apart = np.mean([(np.diff(one.positions) > 1).all() for one in masked])
    assert apart == pytest.approx(0.4**3, abs=0.03)  # three times one word; there is room for one more
    gaps = [np.diff(one.positions).tolist() for one in masked]
    three_and_one = np.mean([(each[:2] == [1, 1]) != (each[1:] == [1, 1]) for each in gaps])
    # Three, then one: 0.2. Or one, then three or the four that find room for three: 0.4 * (0.2 + 0.1).
    assert three_and_one == pytest.approx(0.32, abs=0.03)


def test_the_pieces_of_a_word_share_a_fate() -> None:
    masking = SimilarWordMasking(SPECIAL, similar=SIMILAR)
    continues = np.arange(2, 99, 2)  # words of two pieces
    seen = set()
    for one in masking.many([example([60, 61] * 49, continues)] * 200, keys(200)):
        assert (np.diff(one.positions.reshape(-1, 2)) == 1).all()
        for word in map(tuple, one.ids[one.positions].reshape(-1, 2).tolist()):
            seen.add("kept" if word == (60, 61) else "similar" if word in ((70, 71), (80, 81)) else "random")
    assert seen == {"kept", "similar", "random"}


def test_different_words_have_different_hashes() -> None:
    words = np.stack(np.meshgrid(np.arange(200), np.arange(200)), -1).reshape(-1, 2)
    longer = np.concatenate([words, words[:, :1]], axis=1)
    hashes = [word_hashes(words), word_hashes(longer), word_hashes(np.arange(200)[:, None])]
    assert len(np.unique(np.concatenate(hashes))) == 40_000 + 40_000 + 200
