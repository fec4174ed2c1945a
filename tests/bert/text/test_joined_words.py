"""Words as the text that is served: Chinese without blanks, and the same words as with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.text.offsets import join_words, word_bounds, word_starts

WORDS = st.lists(
    st.sampled_from(
        ["Ada", "U.S.", "北", "北京", "，", "“", "さん", "カ", "２", "Ａ", "한국", "é", "🙂", "1", ".", "—"]
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("北 京 大 学 ， 李 明 。", "北京大学，李明。"),
        ("他 说 “ 好 ” 。", "他说“好”。"),
        ("田中 さん は 東京 へ", "田中さん は東京へ"),
        ("在 Paris 见 面", "在 Paris 见面"),
        ("１ ９ ９ ８ 年", "１ ９ ９ ８年"),
        ("Ada met “ Zoë ” — .", "Ada met “ Zoë ” — ."),
        ("한국 서울 에서", "한국 서울 에서"),
        ("", ""),
    ],
)
def test_chinese_has_no_blanks_between_its_words(words: str, text: str) -> None:
    assert join_words(words.split()) == text


@given(WORDS)
def test_a_word_lies_where_its_start_says(words: list[str]) -> None:
    text = join_words(words)
    for word, start in zip(words, word_starts(words), strict=True):
        assert text[start : start + len(word)] == word
    assert text.replace(" ", "") == "".join(words)


@given(WORDS)
def test_the_words_of_the_text_are_those_with_blanks(words: list[str]) -> None:
    joined, spaced = join_words(words), " ".join(words)
    found = [[text[a:b] for a, b in word_bounds([text])[0]] for text in (joined, spaced)]
    assert found[0] == found[1]
