"""Sentences of any document, read from the disk."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from bert.errors import DataError
from tests.support.pretraining_documents import FIRST, document, numbered, write_corpus
from training.corpus.shards import Document
from training.pretraining.examples.text import OtherDocuments

LENGTHS = [[3, 4], [5], [2, 2, 2], [1] * 200, [7, 1]]


def others(folder: Path, *shards: list[Document]) -> OtherDocuments:
    return OtherDocuments(write_corpus(folder, list(shards)), "train")


@pytest.fixture
def five(tmp_path: Path) -> OtherDocuments:
    """Five documents in three shards, and a shard without any."""
    documents = numbered(LENGTHS)
    return others(tmp_path, documents[:2], [], documents[2:4], documents[4:])


def test_documents_are_numbered_through_all_shards(five: OtherDocuments) -> None:
    assert len(five) == 5
    assert [five.first(shard) for shard in range(4)] == [0, 2, 2, 4]


def test_each_other_document_and_each_sentence_is_drawn_equally_often(five: OtherDocuments) -> None:
    rng, found = Random(0), Counter[int]()
    for _ in range(4000):
        shard, start, stop = five.draw(3, 1, rng)
        ids, continues = five.tokens(shard, start, stop)
        assert ids.dtype == "int32" and not continues.any()
        found[int(ids[0]) - FIRST] += 1
    starts = {0: 8, 3: 8, 7: 4, 12: 12, 14: 12, 16: 12, 218: 8, 225: 8}  # first token → one in so many
    assert set(found) == set(starts)
    for start, one_in in starts.items():
        assert found[start] / 4000 == pytest.approx(1 / one_in, abs=0.025)


@pytest.mark.parametrize(
    ("sentence", "size", "stop"),
    [(0, 0, 1), (0, 1, 1), (0, 64, 64), (0, 65, 65), (10, 150, 160), (10, 1000, 200), (199, 5, 200)],
)
def test_whole_sentences_are_read_until_they_are_enough(
    tmp_path: Path, sentence: int, size: int, stop: int
) -> None:
    class Fixed(Random):
        def randint(self, a: int, b: int) -> int:
            return 1 if b == 1 else sentence  # the second document, and the sentence

    both = others(tmp_path, numbered([[4], [1] * 200]))
    assert both.draw(0, size, Fixed()) == (0, 4 + sentence, 4 + stop)


def test_words_keep_their_pieces(tmp_path: Path) -> None:
    both = others(tmp_path, [document([10])], [document([20, 21, 22], continues=[21])])
    ids, continues = both.tokens(*both.draw(0, 1, Random(0)))
    assert (ids.tolist(), continues.tolist()) == ([20, 21, 22], [False, True, False])


def test_documents_without_text_are_drawn_again(tmp_path: Path) -> None:
    mostly = others(tmp_path, [document([10])], [document()] * 20, [document([20]), document([])])
    assert {mostly.draw(0, 1, Random(seed))[0] for seed in range(20)} == {2}


def test_no_other_document_with_text_is_said(tmp_path: Path) -> None:
    alone = others(tmp_path, [document([10])], [document()])
    with pytest.raises(DataError, match="split 'train' has no second document with text"):
        alone.draw(0, 1, Random(0))


@pytest.mark.parametrize("part", ["documents", "sentences", "tokens"])
def test_a_file_that_went_or_was_cut_is_named(tmp_path: Path, part: str) -> None:
    both = others(tmp_path, [document([10])], [document([20, 21])])
    place = both.draw(0, 1, Random(0))
    file = tmp_path / f"train-00001.{part}"
    file.write_bytes(b"")
    with pytest.raises(DataError, match=f"train-00001.{part}: ends before value"):
        both.tokens(*place) if part == "tokens" else both.draw(0, 1, Random(0))
    file.unlink()
    with pytest.raises(DataError, match=f"train-00001.{part}: cannot be read: No such file"):
        both.tokens(*place) if part == "tokens" else both.draw(0, 1, Random(0))
