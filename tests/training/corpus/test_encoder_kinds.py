"""Byte-level BPE and Unigram: ids by way of the table are the tokenizer's own, and a space begins a word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.tokenizer import Tokenizer
from tests.support.odd_texts import ODD_TEXTS
from tests.support.tokenizers import KINDS, backend_of
from training.corpus.encoder import SentenceEncoder
from training.corpus.sentences import split_sentences

OTHERS = tuple(kind for kind in KINDS if not kind.startswith("wordpiece"))
LETTERS = st.sampled_from("ab  don't,.19京大かไéﬁ😀\u0301\u200d\xa0\u3000\t\x0b\x1c[]<s>Ġ▁")
TEXTS = st.lists(st.text(LETTERS) | st.sampled_from(ODD_TEXTS), max_size=4)


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(backend_of(kind))


def sentences_of(encoder: SentenceEncoder, texts: list[str]) -> list[list[int]]:
    found = encoder.encode(texts)
    return [part.tolist() for part in np.split(found.tokens, found.sentences[1:-1])]


@pytest.mark.parametrize("kind", OTHERS)
@settings(max_examples=30)
@given(texts=TEXTS)
def test_ids_are_those_of_the_tokenizer(kind: str, texts: list[str]) -> None:
    texts = [" ".join(text.splitlines()) for text in texts] or ["a"]
    reference = backend_of(kind)
    reference.encode_special_tokens = True
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    found = sentences_of(SentenceEncoder(tokenizer_of(kind)), texts)
    assert found == tokenizer_of(kind).ids(texts)
    if not any(
        "<s>" in text for text in texts
    ):  # Unigram's own vocabulary has it, and a text is never read as special
        assert found == expected


@pytest.mark.parametrize("kind", OTHERS)
def test_sentences_after_the_first_begin_with_a_space(kind: str) -> None:
    text = "Ada met Charles. He gave a talk.  They'll say so! \n\n So it was. 😀 Yes."
    tokenizer = tokenizer_of(kind)
    sentences = split_sentences(text, "en", spaced=True)
    assert [sentence[0].isspace() for sentence in sentences] == [False, *[True] * (len(sentences) - 1)]
    found = SentenceEncoder(tokenizer).encode(sentences)
    assert found.tokens.tolist() == tokenizer.ids([" ".join(text.split())])[0]


@pytest.mark.parametrize("kind", OTHERS)
def test_pieces_without_a_space_go_on_with_a_word(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    texts = ["Lovelace's notes, naïve ones", " 12,345 £ 😀"]
    found = SentenceEncoder(tokenizer).encode(texts)
    begins = np.flatnonzero(~found.continues)
    assert len(begins) == 4 + 3
    words = [tokenizer.decode(part.tolist()).strip() for part in np.split(found.tokens, begins[1:])]
    expected = " ".join(texts).split()
    if kind == "unigram_albert":
        expected = ["lovelace's", "notes,", "naive", *expected[3:]]
    unknown = {"£", "😀"} if kind.startswith("unigram") else set()
    assert [word for word in words if word] == [word for word in expected if word not in unknown]


def test_sentences_keep_no_space_where_the_text_has_none() -> None:
    assert split_sentences("你好。我们去公园！ 好的\n对", "zh", spaced=True) == [
        "你好。",
        "我们去公园！",
        " 好的",
        " 对",
    ]
    assert split_sentences("a.\n\nb\r\nc", "en", "sentence", spaced=True) == ["a.", " b", " c"]
