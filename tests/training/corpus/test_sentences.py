"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.corpus.sentences import LineBreaks, split_sentences


def test_english() -> None:
    text = 'Mr. Smith paid $3.50 to Dr. Jones. "Why?" he asked. U.S. trade grew.'
    assert split_sentences(text, "en") == [
        "Mr. Smith paid $3.50 to Dr. Jones.",
        '"Why?" he asked.',
        "U.S. trade grew.",
    ]


def test_chinese() -> None:
    assert split_sentences("今天天气很好。我们去公园吧！好吗？“是的。”他说。", "zh") == [
        "今天天气很好。",
        "我们去公园吧！",
        "好吗？",
        "“是的。”",
        "他说。",
    ]


@pytest.mark.parametrize(
    ("line_breaks", "expected"),
    [
        ("paragraph", ["One. Two", "goes on.", "Last", "end."]),
        ("space", ["One. Two goes on.", "Last end."]),
        ("sentence", ["One. Two", "goes on.", "Last", "end."]),
    ],
)
def test_line_breaks_mean_what_the_setting_says(line_breaks: LineBreaks, expected: list[str]) -> None:
    found = split_sentences("One. Two\r\ngoes on.\n \n\nLast\rend.\n", "en", line_breaks)
    together = [part.replace("One. ", "") for part in expected]
    if line_breaks == "sentence":
        assert found == expected
    else:
        assert found == ["One.", *together]


@pytest.mark.parametrize("space", ["\xa0", "\u3000", "\u2003"])
def test_wide_spaces_do_not_make_sentencex_panic(space: str) -> None:
    assert split_sentences(f"By A{space}. They went.", "en") == ["By A .", "They went."]


def test_a_panic_makes_one_sentence_of_the_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(language: str, text: str) -> list[str]:
        raise PanicException

    monkeypatch.setattr("training.corpus.sentences.sentencex.segment", panic)
    assert split_sentences("One. Two.\nThree.", "en") == ["One. Two.", "Three."]


@given(st.text(st.sampled_from('aB. \n\t。?"“”\u2028\x0c')), st.sampled_from(["paragraph", "space"]))
def test_no_letter_is_lost_and_no_line_break_left(text: str, line_breaks: LineBreaks) -> None:
    found = split_sentences(text, "en", line_breaks)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" and "\n" not in sentence for sentence in found)
