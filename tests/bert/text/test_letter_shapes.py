"""Shapes of words, which become the segments of their pieces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.text.letter_shapes import CAPITALISED, DIGITS, LOWER, MIXED, OTHER, SHAPES, UPPER, shape_of
from tests.support.reading import AWKWARD_TEXTS, character_tokenizer, read

PLAIN = character_tokenizer()
SHAPED = PLAIN.with_letter_shapes()


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("house", LOWER), ("größe", LOWER), ("b2b", LOWER),
        ("House", CAPITALISED), ("Ärzte", CAPITALISED), ("I", CAPITALISED), ("Ǆ", CAPITALISED),
        ("NATO", UPPER), ("A4", CAPITALISED), ("B2B", UPPER), ("ΑΒΓ", UPPER),
        ("iPhone", MIXED), ("McDonald", MIXED), ("USAid", MIXED),
        ("1954", DIGITS), ("٣", DIGITS),
        ("!", OTHER), ("柏林", OTHER), ("😀", OTHER), ("", OTHER),
    ],
)  # fmt: skip
def test_the_shape_of_a_word(word: str, shape: int) -> None:
    assert shape_of(word) == shape


def test_all_pieces_of_a_word_have_its_shape_and_special_tokens_none() -> None:
    (pieces,) = SHAPED.pieces(["Ada met NATO at 10"])
    encoding = SHAPED.single(pieces)
    by_word = {word: {int(s) for s in encoding.segment_ids[encoding.word_ids == word]} for word in range(5)}
    assert by_word == {0: {CAPITALISED}, 1: {LOWER}, 2: {UPPER}, 3: {LOWER}, 4: {DIGITS}}
    assert encoding.segment_ids[0] == encoding.segment_ids[-1] == OTHER


@given(text=st.sampled_from(AWKWARD_TEXTS) | st.text(max_size=30))
def test_shapes_change_nothing_but_the_segments(text: str) -> None:
    (pieces,) = SHAPED.pieces([text])
    plain = read(PLAIN, text)
    for name in ("ids", "offsets", "word_ids"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(plain, name))
    assert pieces.segments is not None and pieces.segments.shape == pieces.ids.shape
    assert set(pieces.segments.tolist()) <= set(range(SHAPES))
    assert not SHAPED.single(plain).segment_ids.any()


def test_windows_and_ids_alone_keep_the_shapes() -> None:
    text = "Ada Lovelace met MARY at noon " * 6
    (pieces,) = SHAPED.pieces([text], only_ids=True)
    assert pieces.segments is not None
    for window in SHAPED.windows(pieces, 24, 6):
        np.testing.assert_array_equal(
            window.encoding.segment_ids[1:-1], pieces.segments[window.start : window.stop]
        )
    assert (SHAPED.segments, PLAIN.segments) == (SHAPES, PLAIN.form.second_segment + 1)
