"""Each piece of a text belongs to the window that shows most of its surroundings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert.encoding import Window, owned_pieces
from tests.support.reading import character_tokenizer, read

TOKENIZER = character_tokenizer()
QUESTION = read(TOKENIZER, "who ?")


def cut(pieces: int, max_tokens: int, stride: int, *, question: bool = False) -> list[Window]:
    text = read(TOKENIZER, "x " * pieces)
    return TOKENIZER.windows(text, max_tokens, stride, prefix=QUESTION if question else None)


def slow_owner(windows: list[Window], piece: int) -> int:
    """Google's rule word by word: min(left, right) + 0.01 * length, the first of the best."""
    best, owner = -1.0, -1
    for index, window in enumerate(windows):
        if window.start <= piece < window.stop:
            left, right = piece - window.start, window.stop - 1 - piece
            score = min(left, right) + 0.01 * (window.stop - window.start)
            if score > best:
                best, owner = score, index
    return owner


@given(st.integers(0, 60), st.integers(8, 30), st.integers(0, 20), st.booleans())
def test_every_piece_is_owned_once_by_googles_rule(
    pieces: int, max_tokens: int, stride: int, question: bool
) -> None:
    windows = cut(pieces, max_tokens, stride, question=question)
    owners = [
        (window.start + int(offset), index)
        for index, (window, owned) in enumerate(zip(windows, owned_pieces(windows), strict=True))
        for offset in np.flatnonzero(owned)
    ]
    assert sorted(owners) == [(piece, slow_owner(windows, piece)) for piece in range(pieces)]


@given(st.integers(0, 40), st.booleans())
def test_the_first_token_of_the_text_is_found_after_the_question(pieces: int, question: bool) -> None:
    for window in cut(pieces, 20, 4, question=question):
        text = np.flatnonzero(window.encoding.sequence_ids == int(question))
        assert len(text) == len(window.context())
        if len(text):
            assert window.first_token == text[0]
