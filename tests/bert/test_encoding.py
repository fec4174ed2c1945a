"""What is worked out when it is asked for is what would have been there from the start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.encoding import Encoding, Pieces
from bert.tokenizer import Tokenizer
from tests.support.tiny import vocabulary

ODD = st.text(st.sampled_from("ab ,.!\n\u00e9\u0301\u4e2d\u200b\U0001f642[]MASK"), max_size=40)
FIELDS = ("ids", "offsets", "word_ids")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    vocab = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocab.write_text("\n".join([*vocabulary(), "\u4e2d"]), encoding="utf-8")
    return Tokenizer.load(vocab)


def same(one: Pieces | Encoding, other: Pieces | Encoding, *fields: str) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and getattr(one, name).dtype == getattr(other, name).dtype
        for name in fields
    )


@settings(deadline=None)
@given(st.lists(ODD, max_size=4), st.integers(0, 10), st.integers(0, 10))
def test_pieces_of_ids_alone_are_the_same_pieces(
    tokenizer: Tokenizer, texts: list[str], start: int, stop: int
) -> None:
    bare, whole = tokenizer.pieces(texts, only_ids=True), tokenizer.pieces(texts)
    assert len(bare) == len(whole)
    for one, other in zip(bare, whole, strict=True):
        assert same(one.slice(start, stop), other.slice(start, stop), *FIELDS)
        assert same(one, other, *FIELDS)


@settings(deadline=None)
@given(ODD, ODD)
def test_encodings_are_the_same_whoever_tokenised(tokenizer: Tokenizer, first: str, second: str) -> None:
    bare, whole = (tokenizer.pieces([first, second], only_ids=only) for only in (True, False))
    fields = (*FIELDS, "segment_ids", "sequence_ids")
    assert same(tokenizer.single(bare[0]), tokenizer.single(whole[0]), *fields)
    assert same(tokenizer.pair(bare[0], bare[1]), tokenizer.pair(whole[0], whole[1]), *fields)


def test_special_tokens_stand_around_each_text(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.pieces(["the film", "was dull"])
    found = tokenizer.pair(first, second)
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
    assert found.ids[[0, 3, 6]].tolist() == special
    assert found.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert found.sequence_ids.tolist() == [-1, 0, 0, -1, 1, 1, -1]
    assert found.word_ids.tolist() == [-1, 0, 1, -1, 0, 1, -1]
    assert found.offsets.tolist() == [[0, 0], [0, 3], [4, 8], [0, 0], [0, 3], [4, 8], [0, 0]]
