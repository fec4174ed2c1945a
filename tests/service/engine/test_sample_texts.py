"""Made-up texts for warm-up and timing."""

from hypothesis import given
from hypothesis import strategies as st

from service.engine.sample_texts import sample_texts


@given(st.integers(3, 600))
def test_sample_texts_have_the_tokens_asked_for(tokens: int) -> None:
    assert sum(len(text) for text in sample_texts(tokens)) == tokens
    short = [len(text) for text in sample_texts(tokens, 16)]
    assert sum(short) == tokens and max(short) <= 16
